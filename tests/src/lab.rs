//! Network namespaces for test programs, made on first use and removed with the process.
//!
//! A namespace lives as long as its holder, a process that waits for the end of a pipe; the test holds the
//! other end. Every user has other namespaces: UDP port 4791 belongs to one user at a time.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

use crate::binaries::Binaries;
use crate::place::{Family, Place, Port, Topology, User};
use crate::process::{Running, eventually};

/// User `nobody` and group `nogroup`.
const UNPRIVILEGED: u32 = 65534;
/// First TCP port or rdma_cm port for cases.
const PORT_MIN: u16 = 20_000;

/// One of the two programs of a case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The program that listens.
    Server,
    /// The program that connects.
    Client,
}

/// Data shared by all cases.
#[derive(Debug)]
pub struct Lab {
    binaries: Arc<Binaries>,
    logs: PathBuf,
    root: bool,
    nets: Mutex<HashMap<(Topology, User, u32), Arc<Net>>>,
    /// Networks that join two hosts.
    networks: usize,
    port: Arc<AtomicU16>,
}

/// The namespaces of one place.
#[derive(Debug)]
struct Net {
    /// Those of the server, and of the client if it is in another one.
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Holder(Child);

impl Lab {
    /// Creates a lab that keeps the programs' output in `logs`.
    ///
    /// # Errors
    /// If the binaries are not built.
    pub fn new(logs: PathBuf) -> io::Result<Self> {
        Ok(Self {
            binaries: Arc::new(Binaries::copy()?),
            logs,
            root: is_root(),
            nets: Mutex::default(),
            networks: 1,
            port: Arc::new(AtomicU16::new(PORT_MIN)),
        })
    }

    /// Uses the same programs and files in other namespaces.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            binaries: Arc::clone(&self.binaries),
            logs: self.logs.clone(),
            root: self.root,
            nets: Mutex::default(),
            networks: 1,
            port: Arc::clone(&self.port),
        }
    }

    /// As [`apart`](Self::apart), with two hosts on so many networks, at most four: each host has the
    /// interfaces `veth0`, `veth1` and so on, with the addresses 10.77.0.1 or 10.77.0.2, 10.77.1.1 or
    /// 10.77.1.2 and so on, and a device on each.
    #[must_use]
    pub fn with_networks(&self, networks: usize) -> Self {
        Self { networks, ..self.apart() }
    }

    /// Directory of the outputs; created when the first program starts.
    #[must_use]
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Path of the `roxie` program.
    #[must_use]
    pub fn roxie(&self) -> PathBuf {
        self.binaries.roxie()
    }

    /// A port number that is not used yet in this run, also for names of files.
    pub fn port(&self) -> u16 {
        self.port.fetch_add(1, Ordering::Relaxed)
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self, place: &Place) -> &'static str {
        match (place.topology, place.family) {
            (Topology::Loopback, Family::V4) => "127.0.0.1",
            (Topology::Loopback, Family::V6) => "::1",
            (_, Family::V4) => "10.77.0.1",
            (_, Family::V6) => "fd77::1",
        }
    }

    /// The address of one side.
    #[must_use]
    pub fn own_address(&self, place: &Place, side: Side) -> &'static str {
        match (place.topology, side, place.family) {
            (Topology::TwoHosts, Side::Client, Family::V4) => "10.77.0.2",
            (Topology::TwoHosts, Side::Client, Family::V6) => "fd77::2",
            _ => self.address(place),
        }
    }

    /// The interfaces of the devices.
    #[must_use]
    pub fn netdev(&self, place: &Place) -> &'static str {
        match (place.topology, self.networks) {
            (Topology::Loopback, _) => "lo",
            (_, 1) => "veth0",
            (_, 2) => "veth0,veth1",
            (_, 3) => "veth0,veth1,veth2",
            _ => "veth0,veth1,veth2,veth3",
        }
    }

    /// Starts `roxie run -- program` on one side; its output is kept under `name`.
    ///
    /// # Errors
    /// If namespaces cannot be made or the program cannot be started.
    pub fn run(&self, place: &Place, side: Side, name: &str, program: &[&str]) -> io::Result<Running> {
        let mut words = vec!["run", "--netdev", self.netdev(place)];
        words.extend(match place.ports[side as usize] {
            Port::Udp => &["--shm", "off"][..],
            Port::Shm => &[],
            Port::Native => &["--port", "xsk", "--xdp-mode", "native"],
            Port::Generic => &["--port", "xsk", "--xdp-mode", "generic"],
        });
        words.push("--");
        if program.first().is_some_and(|program| program.ends_with("_bw")) && cpus() > 1 {
            // Two streams on one core would measure the scheduler.
            words.extend(["taskset", "-c", if side == Side::Server { "0" } else { "1" }]);
        }
        words.extend(program);
        self.roxie_command(place, side, name, &words)
    }

    /// Starts `roxie` with `words` on one side.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn roxie_command(
        &self,
        place: &Place,
        side: Side,
        name: &str,
        words: &[&str],
    ) -> io::Result<Running> {
        let holder = self.holder(place, side)?;
        let mut command = self.enter(place, holder);
        command.arg(self.roxie()).args(words);
        let line = format!("[{place} {side:?}] roxie {}", words.join(" "));
        let log = self.logs.join(format!("{}.{side:?}.log", file_name(name)).to_lowercase());
        let process = holder.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        Running::start(command, line, &log, Some(Path::new("/proc").join(process).join("net")))
    }

    /// Runs `ip` with `words` in the side's namespace; returns its output.
    ///
    /// # Errors
    /// What `ip` says; `Unsupported` without root.
    pub fn ip(&self, place: &Place, side: Side, words: &str) -> io::Result<String> {
        if !self.root {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.net(place)?.holder(side).ip(words)
    }

    /// Returns the bytes that have passed each of the side's interfaces `veth0` and so on, both ways.
    ///
    /// # Errors
    /// If the namespaces cannot be made; `Unsupported` without root.
    pub fn carried(&self, place: &Place, side: Side) -> io::Result<Vec<u64>> {
        let holder = self.holder(place, side)?.ok_or(io::ErrorKind::Unsupported)?;
        let table = fs::read_to_string(format!("/proc/{holder}/net/dev"))?;
        let of = |n: usize| table.lines().find_map(|line| interface_bytes(line, &format!("veth{n}")));
        Ok((0..self.networks).map(|n| of(n).unwrap_or(0)).collect())
    }

    /// Writes a launch agent for MPI to `file`: called as `[-OPTION...] HOST COMMAND...`, as ssh is, it runs
    /// the command with `roxie run` on the side that has the address HOST. `words` are for `roxie run`.
    ///
    /// # Errors
    /// If the namespaces or the file cannot be made; `Unsupported` without root.
    pub fn launch_agent(&self, place: &Place, file: &Path, words: &str) -> io::Result<()> {
        let mut script = "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n\
                          host=$1; shift\ncase $host in\n"
            .to_owned();
        for side in [Side::Server, Side::Client] {
            let pid = self.holder(place, side)?.ok_or(io::ErrorKind::Unsupported)?;
            let address = self.own_address(place, side);
            script.push_str(&format!("{address}) net=/proc/{pid}/ns/net;;\n"));
        }
        let (roxie, netdev) = (self.roxie(), self.netdev(place));
        script.push_str(&format!(
            "esac\nexec nsenter --net=\"$net\" {} run --netdev {netdev} {words} -- sh -c \"$*\"\n",
            roxie.display()
        ));
        fs::write(file, script)?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o755))
    }

    /// Runs `f` in a new thread in the side's namespace; the sockets that it opens stay there.
    ///
    /// # Errors
    /// Those of `f`; `Unsupported` without root.
    pub fn visit<T: Send>(
        &self,
        place: &Place,
        side: Side,
        f: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let pid = self.holder(place, side)?.ok_or(io::ErrorKind::Unsupported)?;
        let namespace = fs::File::open(format!("/proc/{pid}/ns/net"))?;
        let visitor = move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            f()
        };
        let visited = thread::scope(|scope| scope.spawn(visitor).join());
        visited.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The process that holds the side's namespace; without root it is this process.
    fn holder(&self, place: &Place, side: Side) -> io::Result<Option<u32>> {
        if !self.root {
            return Ok(None);
        }
        Ok(Some(self.net(place)?.holder(side).0.id()))
    }

    /// The words that enter the holder's namespace as the place's user.
    fn enter(&self, place: &Place, holder: Option<u32>) -> Command {
        let mut words: Vec<String> = Vec::new();
        if let Some(pid) = holder {
            words.extend(["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net"), "--".to_owned()]);
        }
        if place.user == User::Ordinary {
            words.extend(["prlimit", "--memlock=65536:65536", "--"].map(str::to_owned));
        }
        // A background job may have SIGINT ignored, and its children would inherit that.
        words.extend(["env", "--default-signal=INT", "setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        if self.root && place.user == User::Ordinary {
            words.extend([
                format!("--reuid={UNPRIVILEGED}"),
                format!("--regid={UNPRIVILEGED}"),
                "--clear-groups".to_owned(),
            ]);
        }
        words.push("--".to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir("/");
        if place.user == User::Ordinary {
            command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/tmp");
        }
        command
    }

    fn net(&self, place: &Place) -> io::Result<Arc<Net>> {
        let mut nets = self.nets.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (place.topology, place.user, place.mtu);
        if let Some(net) = nets.get(&key) {
            return Ok(Arc::clone(net));
        }
        let net = Arc::new(Net::make(place, self.networks)?);
        nets.insert(key, Arc::clone(&net));
        Ok(net)
    }
}

impl Net {
    fn make(place: &Place, networks: usize) -> io::Result<Self> {
        let mut holders = vec![Holder::new()?];
        match place.topology {
            Topology::Loopback => {}
            Topology::SameHost => {
                holders[0].ip("link add veth0 type veth peer name veth1")?;
                holders[0].up("veth1", place.mtu)?;
                holders[0].up("veth0", place.mtu)?;
                holders[0].dress(1, 0)?;
            }
            Topology::TwoHosts => {
                holders.push(Holder::new()?);
                let peer = holders[1].0.id();
                for n in 0..networks {
                    holders[0].ip(&format!("link add veth{n} type veth peer name veth{n} netns {peer}"))?;
                    for holder in &holders {
                        holder.up(&format!("veth{n}"), place.mtu)?;
                    }
                    holders[0].dress(1, n)?;
                    holders[1].dress(2, n)?;
                }
            }
        }
        for holder in &holders {
            holder.ip("link set lo up")?;
        }
        Ok(Self { holders })
    }

    fn holder(&self, side: Side) -> &Holder {
        match side {
            Side::Server => &self.holders[0],
            Side::Client => &self.holders[self.holders.len() - 1],
        }
    }
}

impl Holder {
    fn new() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = Self(command.spawn()?);
        let (own, theirs) = (namespace("self"), format!("{}", holder.0.id()));
        let entered = || fs::read_to_string(format!("/proc/{theirs}/comm")).is_ok_and(|name| name == "cat\n");
        let moved = || entered() && namespace(&theirs) != own;
        if eventually(Duration::from_secs(5), moved) {
            return Ok(holder);
        }
        Err(io::Error::other("unshare --net did not make a network namespace"))
    }

    fn ip(&self, words: &str) -> io::Result<String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id())).args(["--", "ip"]);
        let output = command.args(words.split(' ')).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(io::Error::other(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr))))
    }

    fn up(&self, netdev: &str, mtu: u32) -> io::Result<()> {
        self.ip(&format!("link set {netdev} mtu {mtu} up")).map(drop)
    }

    /// Adds the addresses of a host on a network. The links must be up: an IPv6 address that is older
    /// than its link's carrier does not reply to the first neighbour solicitation, and the second one follows
    /// a second later.
    fn dress(&self, host: u32, network: usize) -> io::Result<()> {
        self.ip(&format!("address add 10.77.{network}.{host}/24 dev veth{network}"))?;
        let v6 = if network == 0 { "fd77".to_owned() } else { format!("fd77:{network}") };
        self.ip(&format!("address add {v6}::{host}/64 dev veth{network} nodad")).map(drop)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The kernel removes the namespace with its last process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The bytes both ways in the line of an interface (proc_pid_net(5), dev: eight receive counters and eight
/// transmit counters, bytes first).
fn interface_bytes(line: &str, interface: &str) -> Option<u64> {
    let (name, counters) = line.split_once(':')?;
    let counters: Vec<u64> = counters.split_whitespace().flat_map(str::parse).collect();
    (name.trim() == interface).then_some(counters.first()? + counters.get(8)?)
}

/// Whether this process may create namespaces and change its user.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::Uid::effective().is_root()
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(Path::new("/proc").join(process).join("ns/net")).ok()
}

fn file_name(case: &str) -> String {
    case.chars().map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' }).collect()
}
