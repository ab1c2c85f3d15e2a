//! Every example runs, and prints what its documentation promises.

use std::fs;

use roxie_tests::examples::{LIMIT, Place, names};

/// Examples that a test below runs.
const RUN: [&str; 4] = ["echo_tokio", "file_transfer", "kv", "rpc"];

#[test]
fn every_example_is_run_by_a_test() {
    assert_eq!(names(env!("CARGO_MANIFEST_DIR")), RUN);
}

#[test]
fn the_tokio_server_echoes_many_clients() {
    let place = Place::new();
    let (_server, address) = place.serve(&["echo_tokio", "server", "127.0.0.1:0"]);
    let long = "RDMA ".repeat(20_000);
    for text in ["hello, RDMA", "", &long] {
        let output = place.run(&["echo_tokio", "client", &address, text]);
        assert!(output == format!("echoed: {text:?}\n"), "{} bytes", output.len());
    }
}

#[test]
fn a_transferred_file_equals_its_original() {
    let place = Place::new();
    let [from, to] = ["original", "copy"].map(|name| place.dir.join(name).to_string_lossy().into_owned());
    let bytes: Vec<u8> = (0..5_000_003_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    fs::write(&from, &bytes).expect("writable");
    let (mut receiver, address) = place.serve(&["file_transfer", "receive", "127.0.0.1:0", &to]);
    let output = place.run(&["file_transfer", "send", &address, &from]);
    assert!(output.contains("100 %") && output.contains("sent 5000003 bytes"), "{output}");
    let ended = receiver.wait(LIMIT);
    assert!(ended.succeeded() && ended.output.contains("received 5000003 bytes"), "{}", ended.describe());
    assert!(fs::read(&to).expect("readable") == bytes);
}

#[test]
fn calls_get_their_own_replies() {
    let place = Place::new();
    let (_server, address) = place.serve(&["rpc", "server", "127.0.0.1:0"]);
    let output = place.run(&["rpc", "client", &address, "500"]);
    assert!(output.starts_with("reply: hello, RDMA\n500 calls, "), "{output}");
}

#[test]
fn a_get_reads_what_a_put_of_another_process_has_stored() {
    let place = Place::new();
    let (_server, address) = place.serve(&["kv", "server", "127.0.0.1:0"]);
    assert_eq!(place.run(&["kv", "put", &address, "colour", "green"]), "colour = green\n");
    assert_eq!(place.run(&["kv", "get", &address, "colour"]), "colour = green\n");
    assert_eq!(place.run(&["kv", "put", &address, "colour", "blue"]), "colour = blue\n");
    assert_eq!(place.run(&["kv", "get", &address, "colour"]), "colour = blue\n");
    let missing = place.start("client", &["kv", "get", &address, "size"]).wait(LIMIT);
    assert!(missing.code() == Some(1) && missing.output.contains("no such key: size"), "{missing:?}");
}
