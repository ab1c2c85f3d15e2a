//! An emulated machine, and programs in it and at the host's end of its wire.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie_tests::binaries::{self, Binaries};
use roxie_tests::lab::is_root;
use roxie_tests::pair::{Ready, wait_ready};
use roxie_tests::place::Port;
use roxie_tests::process::{Ended, Running};

use crate::end::{End, Kind};

/// Directory where rxe-vm keeps a directory for each machine.
const MACHINES: &str = "/run/rxe-vm";
/// Lifetime of a machine that is not stopped, in minutes.
const MINUTES: &str = "60";
/// First port of the servers.
const PORT_MIN: u16 = 20_000;
/// Time limit for a command in the guest, in seconds: four times what the longest takes on an idle machine.
const COMMAND_SECONDS: &str = "120";
/// Programs of the cases, below this suite's directory; the guest has them in /root.
const PROGRAMS: [&str; 2] = ["programs/several.c", "peers/failover.c"];
/// The first kernel with a virtio_net that is known to bind AF_XDP sockets for zero-copy; 6.12 returns
/// EOPNOTSUPP.
const ZERO_COPY_KERNEL: [u32; 2] = [6, 18];

/// A machine; it is stopped when this is dropped.
pub(crate) struct Machine {
    kind: Kind,
    binaries: Binaries,
    logs: PathBuf,
    /// Name of the machine and of the namespace with the host's end.
    name: String,
    port: AtomicU16,
    /// MTU of both ends.
    mtu: AtomicU32,
}

impl Machine {
    /// What this host lacks for a machine.
    pub(crate) fn missing(kind: Kind) -> Option<&'static str> {
        if !is_root() {
            return Some("root (network namespaces)");
        }
        if let Some(program) = ["qemu-system-x86_64", "ip", "cc", "rping", "ib_write_bw", "ibv_rc_pingpong"]
            .into_iter()
            .find(|program| binaries::find(program).is_none())
        {
            return Some(if program.starts_with("qemu") { "qemu" } else { program });
        }
        let needed = match kind {
            Kind::Rxe => "an image (tests/peers/rxe-vm/rxe-vm prepare)",
            Kind::Pvrdma => "an image with a driver (tests/peers/rxe-vm/rxe-vm prepare --pvrdma)",
            Kind::Wire => {
                "an image with a newer kernel (tests/peers/rxe-vm/rxe-vm prepare --kernel-suite sid)"
            }
        };
        image(kind).is_none().then_some(needed)
    }

    /// Boots a machine.
    pub(crate) fn boot(kind: Kind, logs: PathBuf) -> Result<Self, String> {
        let binaries = Binaries::copy().map_err(|error| error.to_string())?;
        let name = format!("roxie{}", std::process::id());
        let image = image(kind).ok_or("no image")?;
        let mut words =
            vec!["start", "--name", &name, "--netns", &name, "--minutes", MINUTES, "--image", &image];
        let programs =
            PROGRAMS.iter().map(|source| build(source, &binaries)).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<String> =
            binaries.files().iter().chain(&programs).map(|file| file.display().to_string()).collect();
        let roxie = binaries.roxie().display().to_string();
        match kind {
            Kind::Rxe => {}
            Kind::Wire => words.push("--wire"),
            Kind::Pvrdma => words.extend(["--pvrdma", &roxie]),
        }
        words.extend(files.iter().flat_map(|file| ["--with", file]));
        let output = rxe_vm(&words)?;
        println!("{}", String::from_utf8_lossy(&output.stdout).trim());
        Ok(Self { kind, binaries, logs, name, port: AtomicU16::new(PORT_MIN), mtu: AtomicU32::default() })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// A port that is not used yet in this run.
    pub(crate) fn port(&self) -> u16 {
        self.port.fetch_add(1, Ordering::Relaxed)
    }

    /// Path of the `roxie` program.
    pub(crate) fn roxie(&self) -> PathBuf {
        self.binaries.roxie()
    }

    /// Runs `ip` in the namespace of the host's end.
    pub(crate) fn ip(&self, words: &[&str]) -> Result<(), String> {
        let ended = Command::new("ip").args(["-n", &self.name]).args(words).output();
        let ended = ended.map_err(|error| error.to_string())?;
        ended
            .status
            .success()
            .then_some(())
            .ok_or_else(|| String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    /// Starts a recording at the host's end of the wire.
    pub(crate) fn record(&self, name: &str, file: &Path) -> Result<Running, String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(self.binaries.roxie());
        command.args(["capture", "record", "-i", End::Roxie.netdev(), "-o"]).arg(file);
        let log = self.logs.join(format!("{}.log", name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")));
        Running::start(command, format!("record {name}"), &log, None).map_err(|error| error.to_string())
    }

    /// Sets the MTU between host and guest, at both ends.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), String> {
        if self.mtu.swap(mtu, Ordering::Relaxed) != mtu {
            rxe_vm(&["mtu", "--name", &self.name, &mtu.to_string()])?;
        }
        Ok(())
    }

    /// Runs `f` while the machine is stopped (SIGSTOP).
    pub(crate) fn while_stopped<T>(&self, f: impl FnOnce() -> T) -> Result<T, String> {
        let file = Path::new(MACHINES).join(&self.name).join("qemu.pid");
        let pid = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let pid = Pid::from_raw(pid.trim().parse().map_err(|_| format!("'{pid}' is no process"))?);
        kill(pid, Signal::SIGSTOP).map_err(|error| error.to_string())?;
        let done = f();
        kill(pid, Signal::SIGCONT).map_err(|error| error.to_string())?;
        Ok(done)
    }

    /// Starts a program at an end, with roxie on `port`; its output is kept under `name`.
    pub(crate) fn start(&self, end: End, name: &str, port: Port, words: &[&str]) -> Result<Running, String> {
        let mut command = if end == End::Roxie {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.name]);
            command
        } else {
            let mut command = Command::new(program());
            command.args(["exec", "--name", &self.name, "--"]);
            command.args(end.netns().into_iter().flat_map(|netns| ["ip", "netns", "exec", netns]));
            command
        };
        if end != End::Rxe {
            let roxie = if end == End::Roxie { self.binaries.roxie() } else { "/root/roxie".into() };
            command.args(["env", "ROXIE_STATS=1"]).arg(roxie).args(["run", "--netdev", end.netdev()]);
            command.args(match port {
                Port::Udp | Port::Shm => &[][..],
                Port::Native => &["--port", "xsk", "--xdp-mode", "native"],
                Port::Generic => &["--port", "xsk", "--xdp-mode", "generic"],
            });
            command.arg("--");
        }
        command.args(words);
        let line = format!("[{end:?}] {}", words.join(" "));
        let file = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let log = self.logs.join(format!("{file}.{end:?}.log").to_lowercase());
        Running::start(command, line.clone(), &log, None).map_err(|error| format!("{line}: {error}"))
    }

    /// Waits until a server listens.
    pub(crate) fn wait_ready(&self, end: End, server: &mut Running, ready: Ready) -> Result<(), String> {
        let inside = end.netns().map_or_else(String::new, |netns| format!("ip netns exec {netns} "));
        let looking = match (end, ready) {
            (End::Roxie, _) => return wait_ready(server, ready),
            (_, Ready::Tcp(port)) => format!("{inside}ss -Hltn 'sport = :{port}' | grep -q ."),
            (_, Ready::Udp(port)) => format!("{inside}ss -Hlun 'sport = :{port}' | grep -q ."),
            (End::Rxe, Ready::Cm(port)) => format!("rdma resource show cm_id | grep -q 'LISTEN.*:{port} '"),
            (_, Ready::Cm(port)) => format!("{inside}grep -q '/svc/.*/{port:04x}/' /proc/net/unix"),
            (_, Ready::Group(group)) => format!("{inside}ip maddress show | grep -q ' {group}$'"),
        };
        let command = format!("for i in $(seq 60); do {looking} && exit; sleep 0.1; done; exit 1");
        self.command(&command).map_err(|error| {
            format!("the server does not listen: {error}\n{}", server.wait(Duration::ZERO).describe())
        })
    }

    /// Runs a shell command in the guest and requires success.
    pub(crate) fn command(&self, command: &str) -> Result<(), String> {
        self.ask(command).map(drop)
    }

    /// Runs a shell command in the guest; returns its output.
    pub(crate) fn ask(&self, command: &str) -> Result<String, String> {
        let words = ["exec", "--name", &self.name, "--timeout", COMMAND_SECONDS, "--", "sh", "-c", command];
        rxe_vm(&words).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // If this fails, the machine stops by itself some minutes later.
        let _: Result<_, _> = rxe_vm(&["stop", "--name", &self.name]);
    }
}

/// Builds a program beside the binaries.
fn build(source: &str, binaries: &Binaries) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let program = binaries.roxie().with_file_name(source.file_stem().unwrap_or_default());
    let mut compiler = Command::new("cc");
    compiler.args(["-s", "-o"]).arg(&program).arg(source).args(["-lrdmacm", "-libverbs"]);
    let built = compiler.output().map_err(|error| error.to_string())?;
    let said = || String::from_utf8_lossy(&built.stderr).into_owned();
    built.status.success().then_some(program).ok_or_else(said)
}

/// Requires exit code 0.
pub(crate) fn good(ended: Ended, other: &mut Running) -> Result<Ended, String> {
    if ended.succeeded() {
        return Ok(ended);
    }
    Err(format!("{}{}", ended.describe(), other.wait(Duration::ZERO).describe()))
}

/// The image for a kind of machine: the one that `ROXIE_PEER_IMAGE` names, otherwise a suitable one,
/// preferably with programs of the host's release.
fn image(kind: Kind) -> Option<String> {
    let status: serde_json::Value =
        serde_json::from_slice(&rxe_vm(&["status", "--json"]).ok()?.stdout).ok()?;
    let images = status["images"].as_object()?;
    let will_do = |name: &String| match kind {
        Kind::Rxe => std::env::var("ROXIE_PEER_IMAGE").map_or(true, |wanted| *name == wanted),
        Kind::Pvrdma => images[name]["pvrdma"] == true,
        Kind::Wire => {
            let kernel = images[name]["kernel"].as_str().and_then(version);
            kernel.is_some_and(|kernel| kernel >= ZERO_COPY_KERNEL)
                && images[name]["packages"]["xdp-tools"].is_string()
        }
    };
    images.keys().find(|name| will_do(name)).cloned()
}

/// Major and minor version.
fn version(kernel: &str) -> Option<[u32; 2]> {
    let mut parts = kernel.split('.').map(str::parse);
    Some([parts.next()?.ok()?, parts.next()?.ok()?])
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
