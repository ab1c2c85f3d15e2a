//! The emulated machine with the kernel's Soft-RoCE, and programs at either end of the wire to it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use roxie_tests::binaries::{self, Binaries};
use roxie_tests::lab::is_root;
use roxie_tests::pair::{Ready, wait_ready};
use roxie_tests::process::{Ended, Running};

/// Lifetime of the machine, should nobody end it.
const MINUTES: &str = "10";
/// First port of the servers.
const PORT_MIN: u16 = 20_000;
/// Time for a command that changes something in the guest.
const COMMAND_SECONDS: &str = "20";

/// An end of the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Roxie,
    Rxe,
}

impl End {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Roxie => Self::Rxe,
            Self::Rxe => Self::Roxie,
        }
    }

    /// Its address.
    pub(crate) fn address(self, v6: bool) -> &'static str {
        match (self, v6) {
            (Self::Roxie, false) => "10.99.0.1",
            (Self::Roxie, true) => "fd99::1",
            (Self::Rxe, false) => "10.99.0.2",
            (Self::Rxe, true) => "fd99::2",
        }
    }

    /// The index of the GID of that address; rxe has its link-local one in front.
    pub(crate) fn gid_index(self, v6: bool) -> &'static str {
        match (self, v6) {
            (Self::Roxie, false) => "0",
            (Self::Roxie, true) | (Self::Rxe, false) => "1",
            (Self::Rxe, true) => "2",
        }
    }

    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Roxie => "roxie0",
            Self::Rxe => "rxe0",
        }
    }
}

/// The machine; it ends with the value.
pub(crate) struct Rxe {
    binaries: Binaries,
    logs: PathBuf,
    /// Name of the machine and of the namespace with the host's end.
    name: String,
    said: String,
    port: AtomicU16,
}

impl Rxe {
    /// What this host lacks.
    pub(crate) fn missing() -> Option<&'static str> {
        if !is_root() {
            return Some("root (network namespaces)");
        }
        if let Some(program) = ["qemu-system-x86_64", "ip", "rping", "ib_write_bw", "ibv_rc_pingpong"]
            .into_iter()
            .find(|program| binaries::find(program).is_none())
        {
            return Some(if program.starts_with("qemu") { "qemu" } else { program });
        }
        let status = rxe_vm(&["status", "--json"]);
        let status: Option<serde_json::Value> =
            status.ok().and_then(|o| serde_json::from_slice(&o.stdout).ok());
        let has = status.is_some_and(|status| match std::env::var("ROXIE_PEER_IMAGE") {
            Ok(name) => status["images"].get(name).is_some(),
            Err(_) => status["images"].as_object().is_some_and(|images| !images.is_empty()),
        });
        (!has).then_some("an image (tests/peers/rxe-vm/rxe-vm prepare)")
    }

    /// Boots it.
    pub(crate) fn boot(logs: PathBuf) -> Result<Self, String> {
        let binaries = Binaries::copy().map_err(|error| error.to_string())?;
        let name = format!("roxie{}", std::process::id());
        let mut words = vec!["start", "--name", &name, "--netns", &name, "--minutes", MINUTES];
        let image = std::env::var("ROXIE_PEER_IMAGE");
        if let Ok(image) = &image {
            words.extend(["--image", image]);
        }
        let output = rxe_vm(&words)?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { binaries, logs, name, said, port: AtomicU16::new(PORT_MIN) })
    }

    /// What it said when it was up.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// A port that nobody else in this run uses.
    pub(crate) fn port(&self) -> u16 {
        self.port.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a program at an end; its output is kept under `name`.
    pub(crate) fn start(&self, end: End, name: &str, words: &[&str]) -> Result<Running, String> {
        let mut command = match end {
            End::Roxie => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &self.name]).arg(self.binaries.roxie());
                command.args(["run", "--netdev", "host0", "--"]);
                command
            }
            End::Rxe => {
                let mut command = Command::new(program());
                command.args(["exec", "--name", &self.name, "--"]);
                command
            }
        };
        command.args(words);
        let line = format!("[{end:?}] {}", words.join(" "));
        let file = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let log = self.logs.join(format!("{file}.{end:?}.log").to_lowercase());
        Running::start(command, line.clone(), &log, None).map_err(|error| format!("{line}: {error}"))
    }

    /// Waits until a server listens.
    pub(crate) fn wait_ready(&self, end: End, server: &mut Running, ready: Ready) -> Result<(), String> {
        let looking = match (end, ready) {
            (End::Roxie, _) => return wait_ready(server, ready),
            (End::Rxe, Ready::Tcp(port)) => format!("ss -Hltn 'sport = :{port}' | grep -q ."),
            (End::Rxe, Ready::Cm(port)) => format!("rdma resource show cm_id | grep -q 'LISTEN.*:{port} '"),
            (End::Rxe, Ready::Group(group)) => format!("ip maddress show | grep -q ' {group}$'"),
        };
        let command = format!("for i in $(seq 60); do {looking} && exit; sleep 0.1; done; exit 1");
        self.command(&command).map_err(|error| {
            format!("the server does not listen: {error}\n{}", server.wait(Duration::ZERO).describe())
        })
    }

    /// Runs a shell command in the guest to a good end.
    pub(crate) fn command(&self, command: &str) -> Result<(), String> {
        rxe_vm(&["exec", "--name", &self.name, "--timeout", COMMAND_SECONDS, "--", "sh", "-c", command])
            .map(drop)
    }
}

impl Drop for Rxe {
    fn drop(&mut self) {
        // It ends by itself some minutes later.
        let _: Result<_, _> = rxe_vm(&["stop", "--name", &self.name]);
    }
}

/// Requires exit code 0.
pub(crate) fn good(ended: Ended, other: &mut Running) -> Result<Ended, String> {
    if ended.succeeded() {
        return Ok(ended);
    }
    Err(format!("{}{}", ended.describe(), other.wait(Duration::ZERO).describe()))
}

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/rxe-vm/rxe-vm")
}

fn rxe_vm(words: &[&str]) -> Result<Output, String> {
    let output = Command::new(program()).args(words).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output);
    }
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Err(format!("rxe-vm {}: {}\n{out}{err}", words.join(" "), output.status))
}
