//! A run of two programs on two hosts, recorded, and what the analyser must say of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, Running};
use roxie_tests::recording::Recording;
use serde_json::Value;

/// Time for the client of a scenario.
const LIMIT: Duration = Duration::from_secs(12);
/// Time for the server to end by itself after the client, unless it has more to do.
const AFTER: Duration = Duration::from_millis(300);

/// Two hosts, IPv4, root: recording needs that.
pub(crate) fn place() -> Place {
    Place::new(Topology::TwoHosts, Family::V4, User::Root)
}

/// What the two sides run. `{address}` is the server's, `{port}` a port of the scenario's own.
#[derive(Clone, Copy)]
pub(crate) enum Programs {
    /// The same program, which finds its peer over TCP: words of the server, words of the client.
    Tcp(&'static str, &'static str),
    /// The same with the connection manager.
    Cm(&'static str, &'static str),
    /// `--actor`: words of the server, words of the client.
    Actor(&'static str, &'static str),
    /// A client alone.
    Client(&'static str),
    /// Receivers of a multicast group: words of the receiver, words of the sender.
    Group(&'static str, &'static str),
}

/// What the recording shows.
#[derive(Clone, Copy)]
pub(crate) enum Shows {
    /// Nothing.
    Nothing,
    /// A finding of this kind comes first, with these words in the verdict.
    First(&'static str, &'static str),
    /// A finding of this kind, with these words in it, beside others that follow from it.
    Also(&'static str, &'static str),
    /// As `First`, at the packet that is the nth (from 1) of those with these words in their opcode.
    Packet(&'static str, &'static str, (&'static str, usize)),
}

/// Runs of a scenario at most; few are disturbed where nothing else runs.
const TRIES: u32 = 10;

/// What came of a run.
enum Outcome {
    Right,
    /// What was found may come from the machine.
    Disturbed(String),
    Wrong(String),
}

/// Does something to the hosts.
pub(crate) type Prepare = fn(&Lab) -> Result<(), String>;
/// Makes an object file in a directory.
pub(crate) type Hook = fn(&Path) -> Result<PathBuf, String>;

/// A scenario.
pub(crate) struct Scenario {
    pub(crate) name: String,
    programs: Programs,
    /// Whose interface is recorded.
    tap: Side,
    /// Words in front of the server's program, and of the client's: hooks, and whatever `env` takes.
    env: [Vec<&'static str>; 2],
    /// What is done on the hosts before anything runs.
    prepare: Option<Prepare>,
    /// Ends the client after so long.
    limit: Duration,
    /// Time for the server after that.
    after: Duration,
    /// A program for a side's egress hook.
    hook: Option<(Side, Hook)>,
    /// The recording has little room, and little time.
    starved: bool,
    shows: Shows,
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
        }
    }

    /// Recorded on the client's interface.
    pub(crate) fn at_client(self) -> Self {
        Self { tap: Side::Client, ..self }
    }

    /// With these variables in the environment of a side.
    pub(crate) fn env(mut self, side: Side, words: &[&'static str]) -> Self {
        self.env[side as usize].extend(words);
        self
    }

    /// With a program on an interface.
    pub(crate) fn on_the_wire(self, prepare: Prepare) -> Self {
        Self { prepare: Some(prepare), ..self }
    }

    /// The server has something to do when the client has ended.
    pub(crate) fn lingers(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// With a program that sees what a side sends.
    pub(crate) fn hooked(self, side: Side, hook: Hook) -> Self {
        Self { hook: Some((side, hook)), ..self }
    }

    /// The recording loses packets.
    pub(crate) fn starved(self) -> Self {
        Self { starved: true, ..self }
    }

    /// The client, which would go on for long, is ended after so long.
    pub(crate) fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        matches!(self.shows, Shows::Nothing)
    }

    /// The program it cannot do without.
    pub(crate) fn program(&self) -> Option<&'static str> {
        match self.programs {
            Programs::Actor(..) => None,
            Programs::Tcp(_, client)
            | Programs::Cm(_, client)
            | Programs::Group(_, client)
            | Programs::Client(client) => client.split(' ').next(),
        }
    }

    /// Whether its recording is small enough for tshark.
    pub(crate) fn is_compared(&self) -> bool {
        !self.starved
    }

    /// Its recording.
    pub(crate) fn file(&self, lab: &Lab) -> PathBuf {
        let name = self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        lab.logs().join(format!("{name}.pcapng"))
    }

    /// Runs it, and compares, up to [`TRIES`] times, each on hosts of its own.
    ///
    /// On a busy machine an answer may come later than its requester waits for it, and what is repeated then is more than was
    /// planted. A healthy run in which nothing was repeated has one try.
    pub(crate) fn run(&self, lab: &Lab) -> Result<(), String> {
        let mut tries = 1;
        loop {
            match self.attempt(&lab.apart())? {
                Outcome::Right => return Ok(()),
                Outcome::Disturbed(why) if tries < TRIES => println!("{}: once more: {why:.200}", self.name),
                Outcome::Disturbed(why) | Outcome::Wrong(why) => return Err(why),
            }
            tries += 1;
        }
    }

    fn attempt(&self, lab: &Lab) -> Result<Outcome, String> {
        std::fs::create_dir_all(lab.logs()).map_err(|error| error.to_string())?;
        if let Some(prepare) = self.prepare {
            prepare(lab)?;
        }
        let file = self.file(lab);
        let recording = self.record(lab, &file)?;
        let ended = if self.starved { recording.starve(|| self.play(lab)) } else { self.play(lab) };
        recording.end(self.starved)?;
        let outputs: String = ended?.iter().map(Ended::describe).collect();
        let described = |why: String| format!("{why}\nrecording: {}\n{outputs}", file.display());
        let verdict = json(lab, &["analyse", "--json", &file.display().to_string()])?;
        let Err(why) = self.judge(lab, &file, &verdict) else { return Ok(Outcome::Right) };
        let found = serde_json::to_string_pretty(&verdict["findings"]).unwrap_or_default();
        let why = described(format!("{why}\n{}\n{found}", verdict["verdict"]));
        let repeated = verdict["directions"].as_array().into_iter().flatten();
        let repeated = repeated.filter_map(|direction| direction["resent"].as_u64()).any(|resent| resent > 0);
        Ok(if self.is_healthy() && !repeated { Outcome::Wrong(why) } else { Outcome::Disturbed(why) })
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

    /// Lets the programs run; how they end is theirs.
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
        let client = self.start(lab, Side::Client, port, &client)?.wait(self.limit);
        Ok(vec![client, server.wait(self.after)])
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
        let hook = hook.map(|path| format!("ROXIE_EGRESS={}", path.display()));
        let mut line = vec!["env"];
        line.extend(&self.env[side as usize]);
        line.extend(hook.as_deref());
        line.extend(filled.iter().map(String::as_str));
        start(lab, &place(), side, &self.name, &line)
    }

    fn judge(&self, lab: &Lab, file: &Path, verdict: &Value) -> Result<(), String> {
        if verdict["roce_packets"].as_u64().is_none_or(|packets| packets == 0) {
            return Err("nothing was recorded".to_owned());
        }
        let (kind, text, packet) = match self.shows {
            Shows::Nothing if verdict["findings"].as_array().is_some_and(Vec::is_empty) => return Ok(()),
            Shows::Nothing => return Err("a false alarm".to_owned()),
            Shows::Also(kind, text) => {
                let mut findings = verdict["findings"].as_array().into_iter().flatten();
                let named = |finding: &Value| {
                    finding["kind"] == kind
                        && finding["text"].as_str().is_some_and(|said| said.contains(text))
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
}

/// The number of the nth packet of a kind.
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

/// What `roxie capture` prints; its exit code says whether something went wrong on the wire.
fn output(lab: &Lab, words: &[&str]) -> Result<String, String> {
    let output = std::process::Command::new(lab.roxie()).arg("capture").args(words).output();
    let output = output.map_err(|error| error.to_string())?;
    if matches!(output.status.code(), Some(0 | 3)) {
        return String::from_utf8(output.stdout).map_err(|error| error.to_string());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
