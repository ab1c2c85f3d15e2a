//! Hosts in network namespaces of their own, and RDMA between them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use crate::host::*;

/// Longest wait for a job: RDMA through a path on which nothing passes ends after 60 s. On a busy machine the
/// kernel's thread of a CPUMAP waits some milliseconds for its CPU, with each packet.
const JOB_MAX: Duration = Duration::from_secs(90);

type Job = Box<dyn FnOnce() + Send>;

/// A host: a thread in a network namespace of its own, which does what it is given.
pub(crate) struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    namespace: String,
}

impl Host {
    pub(crate) fn new() -> Host {
        let (jobs, todo): (Sender<Job>, Receiver<Job>) = channel();
        let (tell, told) = channel();
        let thread = spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            tell.send(format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid())).unwrap();
            todo.into_iter().for_each(|job| job());
        });
        Host { jobs: Some(jobs), thread: Some(thread), namespace: told.recv().unwrap() }
    }

    /// Does the job in the namespace and waits for it.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.begin(job).recv_timeout(JOB_MAX).expect("the job ends")
    }

    pub(crate) fn begin<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (tell, told) = channel();
        let job = Box::new(move || drop(tell.send(job())));
        self.jobs.as_ref().unwrap().send(job).unwrap();
        told
    }

    /// Moves an interface here.
    pub(crate) fn adopt(&self, netdev: &str) {
        ip(&["link", "set", netdev, "netns", &self.namespace]);
    }

    /// Moves the end of a veth here, with an address and a route.
    pub(crate) fn take(&self, netdev: &'static str, address: &'static str, gateway: Option<&'static str>) {
        self.adopt(netdev);
        self.run(move || {
            ip(&["link", "set", "lo", "up"]);
            ip(&["address", "add", address, "dev", netdev]);
            ip(&["link", "set", netdev, "up"]);
            if let Some(gateway) = gateway {
                ip(&["route", "add", "default", "via", gateway]);
            }
        });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// One end of `roxie demo`, on a port of this kind: SEND, WRITE, READ and atomics of every size, each byte
/// verified.
pub(crate) fn demo(role: &str, kind: &str, netdev: &str, address: &str, port: u16) -> Child {
    let port = port.to_string();
    let words = ["60", env!("CARGO_BIN_EXE_roxie"), role, "--netdev", netdev, "--address", address];
    let mut command = Command::new("timeout");
    command.args(words).args(["--port", &port, "--no-figures"]).env("ROXIE_PORT", kind);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The port that the server of [`demo`] reports first; `None` if it cannot open the device.
pub(crate) fn listening_port(server: &mut Child) -> Option<u16> {
    let mut reader = BufReader::new(server.stdout.take().unwrap());
    let report = loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the server reports");
        let report: Value = serde_json::from_str(&line).unwrap();
        if report["say"] == "listening" || report["say"] == "failed" {
            break report;
        }
    };
    // It goes on reporting, which must not fail.
    server.stdout = Some(reader.into_inner());
    report["port"].as_u64().map(|port| port as u16)
}
