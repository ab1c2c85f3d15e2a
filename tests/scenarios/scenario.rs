//! Compares the analysis of a capture with the expected one: of a stored capture, or of two programs that run
//! on two hosts and are recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, Running};
use roxie_tests::recording::Recording;
use serde_json::Value;

/// Time limit for the client of a scenario.
const LIMIT: Duration = Duration::from_secs(12);
/// Time for the server to end after the client, unless it has more to do.
const AFTER: Duration = Duration::from_millis(300);

/// Two hosts, IPv4, root, which recording needs.
pub(crate) fn place() -> Place {
    Place::new(Topology::TwoHosts, Family::V4, User::Root)
}

/// The programs of both sides. `{address}` is the server's, `{port}` a port of this scenario only.
#[derive(Clone, Copy)]
pub(crate) enum Programs {
    /// The same program on both sides, which finds its peer over TCP: words of the server, words of the
    /// client.
    Tcp(&'static str, &'static str),
    /// The same with the connection manager.
    Cm(&'static str, &'static str),
    /// `--actor`: words of the server, words of the client.
    Actor(&'static str, &'static str),
    /// A client without a server.
    Client(&'static str),
    /// Receivers of a multicast group: words of the receiver, words of the sender.
    Group(&'static str, &'static str),
}

/// The expected findings.
#[derive(Clone, Copy)]
pub(crate) enum Shows {
    /// No finding.
    Nothing,
    /// The first finding is of this kind, with these words in the verdict.
    First(&'static str, &'static str),
    /// There is a finding of this kind with these words, beside others that follow from it.
    Also(&'static str, &'static str),
    /// As `First`, at the packet that is the nth (from 1) with these words in its opcode.
    Packet(&'static str, &'static str, (&'static str, usize)),
}

/// How many of the live runs of a scenario must give the expected finding: the planted one at any place, or
/// none in a healthy run. On a busy machine a response may arrive after the requester's timeout, and the
/// retransmission is a finding of its own, rightly. Only a stored capture decides on the order of findings.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    pub(crate) needed: u32,
    pub(crate) runs: u32,
    /// Whether these runs are part of every check, or of `--full` only.
    pub(crate) always: bool,
}

/// Prepares the hosts.
pub(crate) type Prepare = fn(&Lab) -> Result<(), String>;
/// Makes an object file in a directory.
pub(crate) type Hook = fn(&Path) -> Result<PathBuf, String>;

/// A scenario.
pub(crate) struct Scenario {
    pub(crate) name: String,
    programs: Programs,
    /// The side with the recorded interface.
    tap: Side,
    /// Words in front of the server's program and of the client's: hooks, and other arguments of `env`.
    env: [Vec<&'static str>; 2],
    /// Runs on the hosts before the programs.
    prepare: Option<Prepare>,
    /// The client is ended after this time.
    limit: Duration,
    /// Time limit for the server after that.
    after: Duration,
    /// A program for a side's egress hook.
    hook: Option<(Side, Hook)>,
    /// The recording gets a small buffer and little CPU time.
    starved: bool,
    shows: Shows,
    pub(crate) live: Live,
    /// CPUs without which its threads wait for each other.
    pub(crate) cpus: usize,
}

impl Scenario {
    pub(crate) fn new(name: &str, programs: Programs, shows: Shows) -> Self {
        Self {
            name: name.to_owned(),
            programs,
            tap: Side::Server,
            env: [Vec::new(), Vec::new()],
            prepare: None,
            limit: LIMIT,
            after: AFTER,
            hook: None,
            starved: false,
            shows,
            live: Live { needed: 2, runs: 3, always: false },
            cpus: 1,
        }
    }

    /// Records on the client's interface.
    pub(crate) fn at_client(self) -> Self {
        Self { tap: Side::Client, ..self }
    }

    /// Sets these variables in the environment of a side.
    pub(crate) fn env(mut self, side: Side, words: &[&'static str]) -> Self {
        self.env[side as usize].extend(words);
        self
    }

    /// Attaches a program to an interface.
    pub(crate) fn on_the_wire(self, prepare: Prepare) -> Self {
        Self { prepare: Some(prepare), ..self }
    }

    /// The server has something to do after the client has ended.
    pub(crate) fn lingers(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// Runs a program on the packets that a side sends.
    pub(crate) fn hooked(self, side: Side, hook: Hook) -> Self {
        Self { hook: Some((side, hook)), ..self }
    }

    /// The recording loses packets.
    pub(crate) fn starved(self) -> Self {
        Self { starved: true, ..self }
    }

    /// Ends the client, which would run longer, after this time.
    pub(crate) fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Also runs live in every check.
    pub(crate) fn always_live(mut self) -> Self {
        self.live.always = true;
        self
    }

    /// It runs live only with so many CPUs.
    pub(crate) fn with_cpus(self, cpus: usize) -> Self {
        Self { cpus, ..self }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        matches!(self.shows, Shows::Nothing)
    }

    /// The program that it needs.
    pub(crate) fn program(&self) -> Option<&'static str> {
        match self.programs {
            Programs::Actor(..) => None,
            Programs::Tcp(_, client)
            | Programs::Cm(_, client)
            | Programs::Group(_, client)
            | Programs::Client(client) => client.split(' ').next(),
        }
    }

    /// Whether its capture is small enough for tshark.
    pub(crate) fn is_compared(&self) -> bool {
        !self.starved
    }

    /// Path of its stored capture.
    pub(crate) fn stored(&self) -> PathBuf {
        let name = self.name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/captures");
        dir.join(format!("{}.pcapng.gz", name.replace("--", "-").trim_matches('-')))
    }

    /// Analyses the stored capture.
    pub(crate) fn replay(&self, lab: &Lab) -> Result<(), String> {
        let file = self.stored();
        self.judge(lab, &file, self.shows)
            .map_err(|why| format!("{why}\ncapture: {} (ROXIE_BLESS=1 makes it)", file.display()))
    }

    /// Runs it live, each time on new hosts, and compares each recording.
    pub(crate) fn run(&self, lab: &Lab) -> Result<(), String> {
        let Live { needed, runs, .. } = self.live;
        let shows = match self.shows {
            Shows::First(kind, text) | Shows::Packet(kind, text, _) => Shows::Also(kind, text),
            other => other,
        };
        let attempt = |nth| self.attempt(&lab.apart(), &self.recording(lab, nth), shows);
        let wrong: Vec<_> = (1..=runs).filter_map(|nth| attempt(nth).err()).collect();
        let right = runs - wrong.len() as u32;
        let name = &self.name;
        let said = format!("{name}: {right} of {runs} runs gave the expected finding, {needed} are needed");
        println!("{said}");
        if right >= needed { Ok(()) } else { Err(format!("{said}\n{}", wrong.join("\n"))) }
    }

    /// Runs it once, and stores the recording if it gives the expected verdict.
    pub(crate) fn bless(&self, lab: &Lab) -> Result<(), String> {
        let file = self.recording(lab, 0);
        self.attempt(lab, &file, self.shows)?;
        let packed = Command::new("gzip").args(["-9nc"]).arg(&file).stderr(Stdio::inherit()).output();
        let packed = packed.map_err(|error| format!("gzip: {error}"))?;
        let stored = self.stored();
        fs::write(&stored, packed.stdout).map_err(|error| format!("{}: {error}", stored.display()))
    }

    /// Path of the recording of a live run.
    fn recording(&self, lab: &Lab, nth: u32) -> PathBuf {
        let name = self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        lab.logs().join(format!("{name}-{nth}.pcapng"))
    }

    fn attempt(&self, lab: &Lab, file: &Path, shows: Shows) -> Result<(), String> {
        fs::create_dir_all(lab.logs()).map_err(|error| error.to_string())?;
        if let Some(prepare) = self.prepare {
            prepare(lab)?;
        }
        let recording = self.record(lab, file)?;
        let ended = if self.starved { recording.starve(|| self.play(lab)) } else { self.play(lab) };
        recording.end(self.starved)?;
        let outputs: String = ended?.iter().map(Ended::describe).collect();
        self.judge(lab, file, shows).map_err(|why| format!("{why}\nrecording: {}\n{outputs}", file.display()))
    }

    fn record(&self, lab: &Lab, file: &Path) -> Result<Recording, String> {
        let place = place();
        let path = file.display().to_string();
        let mut words = vec!["capture", "record", "-i", lab.netdev(&place), "-o", &path];
        if self.starved {
            words.extend(["--buffer", "1", "-s", "128"]);
        }
        let name = format!("{} recording", self.name);
        let started = lab.roxie_command(&place, self.tap, &name, &words);
        Recording::begin(started.map_err(|error| error.to_string())?)
    }

    /// Runs the programs; their exit codes do not count.
    fn play(&self, lab: &Lab) -> Result<Vec<Ended>, String> {
        let port = lab.port();
        let group = std::net::Ipv4Addr::new(239, 77, 1, 1);
        let (server, client, ready) = match self.programs {
            Programs::Tcp(server, client) => (server.to_owned(), client.to_owned(), Ready::Tcp(port)),
            Programs::Cm(server, client) => (server.to_owned(), client.to_owned(), Ready::Cm(port)),
            Programs::Group(server, client) => {
                (server.to_owned(), client.to_owned(), Ready::Group(group.into()))
            }
            Programs::Actor(server, client) => (
                format!("{{actor}} --actor server {{port}} {server}"),
                format!("{{actor}} --actor client {{address}}:{{port}} {client}"),
                Ready::Tcp(port),
            ),
            Programs::Client(client) => {
                return Ok(vec![self.start(lab, Side::Client, port, client)?.wait(self.limit)]);
            }
        };
        let mut server = self.start(lab, Side::Server, port, &server)?;
        wait_ready(&mut server, ready)?;
        let mut client = self.start(lab, Side::Client, port, &client)?;
        Ok(vec![client.wait(self.limit), server.wait(self.after)])
    }

    fn start(&self, lab: &Lab, side: Side, port: u16, words: &str) -> Result<Running, String> {
        let address = lab.address(&place());
        let own = lab.own_address(&place(), Side::Client);
        let actor = std::env::current_exe().map_err(|error| error.to_string())?.display().to_string();
        let filled: Vec<String> = words
            .split(' ')
            .map(|word| {
                word.replace("{address}", address)
                    .replace("{own}", own)
                    .replace("{actor}", &actor)
                    .replace("{port}", &port.to_string())
            })
            .collect();
        let hook =
            self.hook.filter(|(hooked, _)| *hooked == side).map(|(_, make)| make(lab.logs())).transpose()?;
        let (roxie, hook) = (lab.roxie().display().to_string(), hook.map(|path| path.display().to_string()));
        let mut line = Vec::new();
        // Another `roxie run`, which loads the object file.
        line.extend(hook.iter().flat_map(|hook| [&roxie[..], "run", "--egress", hook, "--"]));
        line.push("env");
        line.extend(&self.env[side as usize]);
        line.extend(filled.iter().map(String::as_str));
        start(lab, &place(), side, &self.name, &line)
    }

    /// Compares the analysis of a capture with the expected one.
    fn judge(&self, lab: &Lab, file: &Path, shows: Shows) -> Result<(), String> {
        let verdict = json(lab, &["analyse", "--json", &file.display().to_string()])?;
        compare(lab, file, shows, &verdict).map_err(|why| {
            let found = serde_json::to_string_pretty(&verdict["findings"]).unwrap_or_default();
            format!("{why}\n{}\n{found}", verdict["verdict"])
        })
    }
}

fn compare(lab: &Lab, file: &Path, shows: Shows, verdict: &Value) -> Result<(), String> {
    if verdict["roce_packets"].as_u64().is_none_or(|packets| packets == 0) {
        return Err("nothing was recorded".to_owned());
    }
    let (kind, text, packet) = match shows {
        Shows::Nothing if verdict["findings"].as_array().is_some_and(Vec::is_empty) => return Ok(()),
        Shows::Nothing => return Err("a false alarm".to_owned()),
        Shows::Also(kind, text) => {
            let mut findings = verdict["findings"].as_array().into_iter().flatten();
            let named = |finding: &Value| {
                finding["kind"] == kind && finding["text"].as_str().is_some_and(|said| said.contains(text))
            };
            return findings.any(named).then_some(()).ok_or(format!("no {kind}"));
        }
        Shows::First(kind, text) => (kind, text, None),
        Shows::Packet(kind, text, packet) => (kind, text, Some(packet)),
    };
    let first = &verdict["first"];
    if first["kind"] != kind {
        return Err(format!("want {kind}, got {}", first["kind"]));
    }
    if !verdict["verdict"].as_str().is_some_and(|verdict| verdict.contains(text)) {
        return Err(format!("'{text}' is not in the verdict"));
    }
    let Some((opcode, nth)) = packet else { return Ok(()) };
    let number = nth_packet(lab, file, opcode, nth)?;
    if first["packet"] == number {
        return Ok(());
    }
    Err(format!("want packet {number}, got {}", first["packet"]))
}

/// The frame number of the nth packet with an opcode.
fn nth_packet(lab: &Lab, file: &Path, opcode: &str, nth: usize) -> Result<u64, String> {
    let path = file.display().to_string();
    let output = output(lab, &["read", "--json", "--no-pager", "--opcode", opcode, &path])?;
    let line = output.lines().nth(nth - 1).ok_or_else(|| format!("there are no {nth} packets '{opcode}'"))?;
    let packet: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    packet["frame.number"].as_u64().ok_or_else(|| "no number".to_owned())
}

fn json(lab: &Lab, words: &[&str]) -> Result<Value, String> {
    serde_json::from_str(&output(lab, words)?).map_err(|error| error.to_string())
}

/// Runs `roxie capture`; its exit code says whether the analysis found a fault.
fn output(lab: &Lab, words: &[&str]) -> Result<String, String> {
    let output = Command::new(lab.roxie()).arg("capture").args(words).output();
    let output = output.map_err(|error| error.to_string())?;
    if matches!(output.status.code(), Some(0 | 3)) {
        return String::from_utf8(output.stdout).map_err(|error| error.to_string());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
