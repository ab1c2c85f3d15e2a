//! Every example runs, and prints what its documentation promises.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use roxie_tests::process::{Running, eventually};

/// Time limit of one program.
const LIMIT: Duration = Duration::from_secs(30);
/// Examples that a test below runs.
const RUN: [&str; 6] = ["back_to_back", "echo", "echo_tokio", "file_transfer", "kv", "rpc"];

/// Programs of one test: a domain of their own on `lo`, and a directory.
struct Place {
    port: u16,
    dir: PathBuf,
}

impl Place {
    fn new() -> Self {
        let probe = UdpSocket::bind(("0.0.0.0", 0)).expect("a UDP socket");
        let port = probe.local_addr().expect("it is bound").port();
        let dir = std::env::temp_dir().join(format!("roxie-examples-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        Self { port, dir }
    }

    fn start(&self, log: &str, words: &[&str]) -> Running {
        // Cargo puts the tests into target/*/deps, and the examples into target/*/examples.
        let own = std::env::current_exe().expect("a test knows its own file");
        let built = own.parent().and_then(Path::parent).expect("it is in target/*/deps");
        let mut command = Command::new(built.join("examples").join(words[0]));
        command
            .args(&words[1..])
            .env("ROXIE_DOMAIN", format!("examples-{}:{}", self.port, self.port))
            .env("ROXIE_NETDEV", "lo");
        Running::start(command, words.join(" "), &self.dir.join(log), None)
            .expect("`cargo build -p roxie --examples` makes it")
    }

    /// Starts a server that prints `listening on ADDRESS`; returns it and the address.
    fn serve(&self, words: &[&str]) -> (Running, String) {
        let server = self.start("server", words);
        let mut address = String::new();
        let listens = eventually(LIMIT, || {
            let output = server.output();
            let found = output.lines().find_map(|line| line.strip_prefix("listening on "));
            address = found.unwrap_or_default().to_owned();
            output.contains('\n') && !address.is_empty()
        });
        assert!(listens, "{words:?}: {}", server.output());
        (server, address)
    }

    /// Runs a program to its end; returns its output.
    fn run(&self, words: &[&str]) -> String {
        let ended = self.start("client", words).wait(LIMIT);
        assert!(ended.succeeded(), "{}", ended.describe());
        ended.output
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The files are small and in the directory for temporary files.
        let _left_to_the_system = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn every_example_is_run_by_a_test() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(dir).expect("the directory exists").map(|file| file.expect("readable").path());
    let mut names: Vec<_> =
        files.map(|file| file.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    assert_eq!(names, RUN);
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
