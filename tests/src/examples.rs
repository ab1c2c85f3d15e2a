//! Runs the examples of a crate as programs.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{Running, eventually};

/// Time limit of one program.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Programs of one test: a domain of their own on `lo`, and a directory.
pub struct Place {
    port: u16,
    /// Removed at the end.
    pub dir: PathBuf,
}

impl Place {
    /// Returns a place with a free port.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Self {
        let probe = UdpSocket::bind(("0.0.0.0", 0)).expect("a UDP socket");
        let port = probe.local_addr().expect("it is bound").port();
        let dir = std::env::temp_dir().join(format!("roxie-examples-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        Self { port, dir }
    }

    /// Starts a program, which writes into the file `log` of the directory.
    pub fn start(&self, log: &str, words: &[&str]) -> Running {
        // Cargo puts the tests into target/*/deps, and the examples into target/*/examples.
        let own = std::env::current_exe().expect("a test knows its own file");
        let built = own.parent().and_then(Path::parent).expect("it is in target/*/deps");
        let mut command = Command::new(built.join("examples").join(words[0]));
        command
            .args(&words[1..])
            .env("ROXIE_DOMAIN", format!("examples-{}:{}", self.port, self.port))
            .env("ROXIE_NETDEV", "lo");
        Running::start(command, words.join(" "), &self.dir.join(log), None)
            .expect("`cargo build --examples` makes it")
    }

    /// Starts a server that prints `listening on ADDRESS`; returns it and the address.
    pub fn serve(&self, words: &[&str]) -> (Running, String) {
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
    pub fn run(&self, words: &[&str]) -> String {
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

/// Returns the names of the examples of the crate in this directory.
pub fn names(manifest_dir: &str) -> Vec<String> {
    let dir = Path::new(manifest_dir).join("examples");
    let files = fs::read_dir(dir).expect("the directory exists").map(|file| file.expect("readable").path());
    let mut names: Vec<_> =
        files.map(|file| file.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}
