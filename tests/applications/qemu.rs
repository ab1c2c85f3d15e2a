//! QEMU's live migration over RDMA (`-incoming rdma:`): a guest that uses its memory moves to another QEMU.
//!
//! QEMU emulates the CPU, so no KVM is needed. The memories of both ends are equal afterwards, and the guest
//! (`guest.c`), which compares its own memory all the time, continues at the target.
//!
//! | QEMU 7.2.22, migration by `rdma:` | the memory is equal, the guest continues |

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Running, eventually};
use serde_json::{Value, json};

use crate::case::{Case, LIMIT, Need, beside, carried, good, prepare, source, two_places};

const QEMU: &str = "qemu-system-x86_64";
/// The guest's memory: its data, 64 MiB from 4 MiB on, and its program at 1 MiB.
const MEMORY_MIB: u64 = 72;
/// Less than the guest's data. Without pinning, QEMU omits pages that contain zeroes only.
const BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;
/// Passes of the guest before the migration, and after it.
const PASSES: usize = 3;
/// Migrations of a case, and how many of them must leave equal memories. On a busy machine some 3 % lose
/// writes: QEMU before 9.0 can lose those of an emulated CPU, over TCP too (fixed by its commit 03bfc2188f;
/// `docs/applications/qemu.md`).
const RUNS: usize = 3;
const NEEDED: usize = 2;
const DIFFERENT: &str = "pages of the target's memory are different";
/// Time for QEMU to end after `quit`.
const QUIT: Duration = Duration::from_secs(20);

pub(crate) fn cases() -> Vec<Case> {
    let [hosts, loopback] = two_places();
    let shm = Place::shm(Topology::SameHost, Family::V4, User::Root);
    let mut cases = Vec::new();
    for place in [hosts, shm, loopback] {
        for pin_all in [false, true] {
            let what = format!("QEMU migration, rdma-pin-all {}", if pin_all { "on" } else { "off" });
            let run = move |lab: &Lab, name: &str| migrations(lab, &place, name, pin_all);
            cases.push(Case::new(place, &what, QEMU, run).with(Need::Program("gcc"), "gcc"));
        }
    }
    cases
}

fn migrations(lab: &Lab, place: &Place, name: &str, pin_all: bool) -> Result<(), String> {
    let mut different = Vec::new();
    for _ in 0..RUNS {
        match migrate(lab, place, name, pin_all) {
            Err(why) if why.contains(DIFFERENT) => different.push(why),
            ended => ended?,
        }
    }
    let equal = RUNS - different.len();
    let said = format!("{name}: {equal} of {RUNS} migrations left equal memories, {NEEDED} are needed");
    println!("{said}");
    if equal >= NEEDED { Ok(()) } else { Err(format!("{said}\n{}", different.join("\n"))) }
}

fn migrate(lab: &Lab, place: &Place, name: &str, pin_all: bool) -> Result<(), String> {
    let port = lab.port();
    let dir = beside(lab, &format!("qemu-{port}"));
    let made =
        fs::create_dir(&dir).and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)));
    made.map_err(|error| format!("{}: {error}", dir.display()))?;
    let guest = guest(lab)?;
    let mut target = Machine::start(lab, place, name, (Side::Server, &dir), &guest)?;
    let mut origin = Machine::start(lab, place, name, (Side::Client, &dir), &guest)?;
    for machine in [&mut target, &mut origin] {
        let state = json!([{"capability": "rdma-pin-all", "state": pin_all}]);
        machine.ask("migrate-set-capabilities", json!({"capabilities": state}))?;
    }
    let address = json!({"uri": format!("rdma:{}:{port}", lab.address(place))});
    target.ask("migrate-incoming", address.clone())?;
    origin.ask("cont", json!({}))?;
    origin.passes(PASSES + 1)?;
    origin.ask("migrate", address)?;
    origin.migrated()?;
    target.migrated()?;
    let (before, after) = (origin.memory()?, target.memory()?);
    if let Some(page) = before.chunks(PAGE).zip(after.chunks(PAGE)).position(|(a, b)| a != b) {
        let differing = before.chunks(PAGE).zip(after.chunks(PAGE)).filter(|(a, b)| a != b).count();
        return Err(format!("{differing} {DIFFERENT}, the first is {page}"));
    }
    target.ask("cont", json!({}))?;
    target.passes(PASSES)?;
    for machine in [&mut origin, &mut target] {
        machine.end(BYTES)?;
    }
    Ok(())
}

/// The guest's program, built once.
fn guest(lab: &Lab) -> Result<PathBuf, String> {
    let program = beside(lab, "qemu-guest");
    if !program.exists() {
        let words = "-m32 -O1 -ffreestanding -fno-pic -fno-stack-protector -fcf-protection=none -nostdlib \
                     -fno-asynchronous-unwind-tables -static -no-pie -Wl,--build-id=none,--nmagic \
                     -Wl,-Ttext=0x100000,--no-warn-rwx-segments -o";
        let mut command = Command::new("gcc");
        prepare(command.args(words.split_whitespace()).arg(&program).arg(source("guest.c")))?;
    }
    Ok(program)
}

/// A QEMU and its monitor (QMP), which has a socket in the case's directory.
struct Machine {
    running: Running,
    monitor: BufReader<UnixStream>,
    console: PathBuf,
    dump: PathBuf,
}

impl Machine {
    /// Starts a QEMU with a stopped guest.
    fn start(
        lab: &Lab,
        place: &Place,
        name: &str,
        (side, dir): (Side, &Path),
        guest: &Path,
    ) -> Result<Self, String> {
        let file = |kind: &str| dir.join(format!("{side:?}.{kind}"));
        let (socket, console, dump) = (file("qmp"), file("console"), file("memory"));
        let monitor = format!("unix:{},server=on,wait=off", socket.display());
        let (memory, debug) = (MEMORY_MIB.to_string(), format!("file:{}", console.display()));
        let guest = guest.display().to_string();
        let mut words = vec!["env", "ROXIE_STATS=1", QEMU, "-accel", "tcg", "-m", &memory, "-S"];
        words.extend(["-nodefaults", "-display", "none", "-kernel", &guest]);
        words.extend(["-debugcon", &debug, "-qmp", &monitor]);
        if side == Side::Server {
            words.extend(["-incoming", "defer"]);
        }
        let started = lab.run(place, side, name, &words);
        let mut running = started.map_err(|error| error.to_string())?;
        let mut stream = None;
        eventually(LIMIT, || {
            stream = UnixStream::connect(&socket).ok();
            stream.is_some() || running.has_ended()
        });
        let stream = stream.ok_or_else(|| running.wait(Duration::ZERO).describe())?;
        stream.set_read_timeout(Some(LIMIT)).map_err(|error| error.to_string())?;
        let mut machine = Self { running, monitor: BufReader::new(stream), console, dump };
        machine.read()?;
        machine.ask("qmp_capabilities", json!({}))?;
        Ok(machine)
    }

    /// One line of the monitor.
    fn read(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        let read = self.monitor.read_line(&mut line);
        let value = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        value.ok_or_else(|| format!("no line of QMP\n{}", self.running.wait(Duration::ZERO).describe()))
    }

    /// Executes a command of the monitor and returns its result.
    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let line = json!({"execute": command, "arguments": arguments}).to_string();
        let written = self.monitor.get_mut().write_all(line.as_bytes());
        written.map_err(|error| format!("{command}: {error}"))?;
        loop {
            let line = self.read()?;
            if let Some(result) = line.get("return") {
                return Ok(result.clone());
            }
            if line.get("event").is_none() {
                return Err(format!("{command}: {line}"));
            }
        }
    }

    /// Waits until the guest has written so many characters, and requires that it found no wrong word.
    fn passes(&mut self, count: usize) -> Result<(), String> {
        let mut said = String::new();
        let enough = eventually(LIMIT, || {
            said = fs::read_to_string(&self.console).unwrap_or_default();
            said.len() >= count || said.contains('X') || self.running.has_ended()
        });
        if enough && said.len() >= count && !said.contains('X') {
            return Ok(());
        }
        let end = self.running.wait(Duration::ZERO).describe();
        Err(format!("the guest's console has '{said}', not {count} passes\n{end}"))
    }

    fn migrated(&mut self) -> Result<(), String> {
        let mut last = Ok(Value::Null);
        eventually(LIMIT, || {
            std::thread::sleep(Duration::from_millis(20));
            last = self.ask("query-migrate", json!({}));
            let Ok(state) = &last else { return true };
            ["completed", "failed"].map(Value::from).contains(&state["status"])
        });
        match last? {
            state if state["status"] == "completed" => Ok(()),
            state => Err(format!("the migration: {state}\n{}", self.running.wait(QUIT).describe())),
        }
    }

    /// All memory of the guest, which stands still.
    fn memory(&mut self) -> Result<Vec<u8>, String> {
        let file = self.dump.display().to_string();
        self.ask("pmemsave", json!({"val": 0, "size": MEMORY_MIB << 20, "filename": file}))?;
        let bytes = fs::read(&self.dump).map_err(|error| format!("{file}: {error}"))?;
        fs::remove_file(&self.dump).map_err(|error| format!("{file}: {error}"))?;
        Ok(bytes)
    }

    /// Ends QEMU; its counters must show that RDMA carried so many bytes.
    fn end(&mut self, bytes: u64) -> Result<(), String> {
        self.ask("quit", json!({}))?;
        carried(&good(self.running.wait(QUIT))?, bytes)
    }
}
