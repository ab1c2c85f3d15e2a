//! Runs a test in a process of its own, with a private domain and UDP port.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, abort};

/// Environment variable that is set in the inner process.
const INSIDE: &str = "ROXIE_HOSTILE_INSIDE";

/// Runs `body` in a new process, in which local packets go through the network stack; `test` is the name of
/// the calling test.
pub(crate) fn alone(test: &str, body: fn()) {
    inside(test, body, &["off"]);
}

/// Runs `body` as [`alone`], and once more with shared memory for local packets.
pub(crate) fn on_both_paths(test: &str, body: fn()) {
    inside(test, body, &["off", "on"]);
}

/// True if this process uses shared memory for local packets.
pub(crate) fn through_memory() -> bool {
    std::env::var_os("ROXIE_SHM").is_some_and(|shm| shm == "on")
}

fn inside(test: &str, body: fn(), paths: &[&str]) {
    if std::env::var_os(INSIDE).is_some() {
        // Without this, a panic of the background thread would not fail the test.
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            print(panic);
            abort();
        }));
        return body();
    }
    for shm in paths {
        let port = free_port();
        let status = Command::new(std::env::current_exe().expect("a test knows its own file"))
            .args([test, "--exact", "--nocapture"])
            .env(INSIDE, "1")
            .env("ROXIE_DOMAIN", format!("hostile-{port}:{port}"))
            .env("ROXIE_NETDEV", "lo")
            .env("ROXIE_SHM", shm)
            .status()
            .expect("a test can be started again");
        assert!(status.success(), "{test} in its own process, shared memory {shm}: {status}");
    }
}

/// Returns the UDP port of this process's domain.
pub(crate) fn port() -> u16 {
    let domain = std::env::var("ROXIE_DOMAIN").expect("set by `alone`");
    domain.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port after the colon")
}

/// Returns a free port. Another program could take it before the test binds it, which is as likely as getting
/// the same ephemeral port twice.
fn free_port() -> u16 {
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a UDP socket");
    probe.local_addr().expect("it is bound").port()
}
