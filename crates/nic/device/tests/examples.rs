//! Every example runs, and prints what its documentation promises.

use roxie_tests::examples::{LIMIT, Place, names};

/// Examples that a test below runs.
const RUN: [&str; 2] = ["back_to_back", "echo"];

#[test]
fn every_example_is_run_by_a_test() {
    assert_eq!(names(env!("CARGO_MANIFEST_DIR")), RUN);
}

#[test]
fn two_queue_pairs_of_one_process_exchange_messages() {
    let output = Place::new().run(&["back_to_back"]);
    assert!(output.contains("hello"), "{output}");
}

#[test]
fn the_server_of_the_verbs_example_echoes_one_message() {
    let place = Place::new();
    // This example needs a number of a port.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it is bound");
    let (mut server, address) = place.serve(&["echo", "server", &port.to_string()]);
    assert_eq!(place.run(&["echo", "client", &address, "hello, RDMA"]), "echoed: \"hello, RDMA\"\n");
    let ended = server.wait(LIMIT);
    assert!(ended.succeeded(), "{}", ended.describe());
}
