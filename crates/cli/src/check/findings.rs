//! The files in which the processes of the command record their findings.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;

use nix::sys::signal::kill;
use nix::unistd::Pid;
use roxie::finding::FindingKind;
use serde::Deserialize;
use sys::Dir;

use crate::failure::{During, Outcome};
use crate::processes::Processes;

use super::ends::{End, Ends};
use super::finding::{Finding, Stack};

/// One line of a file.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Process {
        command: String,
    },
    Finding(Finding),
    End(End),
    /// The queue pair was reset or destroyed.
    Gone {
        at: u64,
        qp: u32,
    },
    /// A queue pair posts for the first time.
    Link(Link),
    /// A call stack that posts.
    Place {
        site: u32,
        stacks: Vec<Stack>,
    },
    /// A memory region.
    Region {
        at: u64,
        key: u32,
        first: u64,
        length: u64,
    },
    /// It was deregistered.
    RegionEnd {
        at: u64,
        key: u32,
    },
}

/// The peer of a queue pair.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Link {
    /// Since when.
    pub(super) at: u64,
    pub(super) qp: u32,
    pub(super) peer: u32,
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
}

/// What happened to a connection.
#[derive(Debug)]
enum Change {
    Connected(End),
    Gone(u32),
}

/// Longest time from the refusal of a request to its line in the file, in nanoseconds: processes look every
/// 250 ms.
const REFUSED_NS: u64 = 1_000_000_000;
/// Longest time from the event to its line in the file, in nanoseconds.
const WRITTEN_NS: u64 = 100_000_000;

/// The directory with one file for each process.
#[derive(Debug)]
pub(super) struct Findings {
    dir: Dir,
    numbers: Processes,
    files: HashMap<u32, Reader>,
    ends: Ends,
    /// What happened to connections and was not looked at yet: when, and in which process.
    changes: Vec<(u64, u32, Change)>,
    /// Processes and queue pairs that were reset or destroyed, and when.
    ended: Vec<(u32, u32, u64)>,
    /// What one end tells of a refused request, and until when it waits for the other end.
    waiting: Vec<(u64, Finding)>,
    /// The ends that told of a refused request, requester first.
    told: HashSet<(u32, u32)>,
}

/// How far a file has been read.
#[derive(Debug, Default)]
struct Reader {
    position: u64,
    /// Lines that were no findings.
    strange: u64,
    command: String,
    /// Call stacks by their numbers.
    places: HashMap<u32, Stack>,
    /// By queue pair numbers, in the order of time.
    links: HashMap<u32, Vec<Link>>,
    /// By remote keys, which are used again.
    regions: HashMap<u32, Vec<Region>>,
}

/// Bytes of a file that are read at a time. What remains is read by the next call. Half: more calls for
/// `--races`, with some 100 MB. Double: a hostile process takes more memory.
const ADDED_MAX: u64 = 64 << 20;
/// Such parts at the end of the command: 4 GiB of each process.
const PARTS_MAX: u32 = 64;

/// Memory of a remote key.
#[derive(Debug)]
struct Region {
    first: u64,
    length: u64,
    /// When it was registered and deregistered.
    from: u64,
    until: u64,
}

impl Findings {
    pub(super) fn new(dir: Dir) -> Self {
        let (files, ends, changes) = (HashMap::new(), Ends::default(), Vec::new());
        let (numbers, waiting, told) = (Processes::default(), Vec::new(), HashSet::new());
        Self { dir, numbers, files, ends, changes, ended: Vec::new(), waiting, told }
    }

    /// Names the processes.
    pub(super) fn numbers(&mut self) -> &mut Processes {
        &mut self.numbers
    }

    /// Processes that opened the device.
    pub(super) fn processes(&self) -> usize {
        self.files.len()
    }

    /// Whether a process of the command runs that has opened the device.
    pub(super) fn has_running(&self) -> Outcome<bool> {
        let names = self.dir.names().reading(self.dir.path())?;
        let runs = |number: u32| kill(Pid::from_raw(number.cast_signed()), None).is_ok();
        Ok(names.iter().filter_map(|name| parse_name(name)).any(|(number, _)| runs(number)))
    }

    /// The command line of a process.
    pub(super) fn command(&self, process: u32) -> String {
        self.files.get(&process).map(|reader| reader.command.clone()).unwrap_or_default()
    }

    /// Processes and queue pairs that were reset or destroyed, and when.
    pub(super) fn ended(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        self.ended.iter().copied()
    }

    /// The peer of a queue pair at a time.
    pub(super) fn link(&self, process: u32, qp: u32, at: u64) -> Option<&Link> {
        self.files.get(&process)?.links.get(&qp)?.iter().rfind(|link| link.at <= at)
    }

    /// The call stack with this number.
    pub(super) fn place(&self, process: u32, site: u32) -> Option<&Stack> {
        self.files.get(&process)?.places.get(&site)
    }

    /// Whether a memory region of the process, of this remote key, had these addresses at a time.
    pub(super) fn has_memory(&self, process: u32, key: u32, (first, end): (u64, u64), at: u64) -> bool {
        let regions = self.files.get(&process).and_then(|reader| reader.regions.get(&key));
        regions
            .into_iter()
            .flatten()
            .filter(|region| region.from <= at && at <= region.until)
            .any(|region| first >= region.first && end >= first && end - region.first <= region.length)
    }

    /// Calls `f` with the findings since the last call. Connections are looked at in the order of time, so
    /// what other processes may still write about the last moments waits for the next call.
    pub(super) fn read(&mut self, f: impl FnMut(Finding) -> Outcome) -> Outcome {
        self.read_until(sys::now_ns().saturating_sub(WRITTEN_NS), f)
    }

    /// As [`read`](Self::read), when all processes have ended.
    pub(super) fn read_rest(&mut self, mut f: impl FnMut(Finding) -> Outcome) -> Outcome {
        self.read_until(u64::MAX, &mut f)?;
        self.ends.rest().into_iter().try_for_each(f)
    }

    fn read_until(&mut self, until_ns: u64, mut f: impl FnMut(Finding) -> Outcome) -> Outcome {
        for name in self.dir.names().reading(self.dir.path())? {
            let Some((number, token)) = parse_name(&name) else { continue };
            let process = self.numbers.id(number, token);
            // At the end of the command all that it wrote; a process that outlives it may go on writing.
            let parts = if until_ns == u64::MAX { PARTS_MAX } else { 1 };
            for _ in 0..parts {
                let lines = self.files.entry(process).or_default().lines(&self.dir, &name);
                if lines.is_empty() {
                    break;
                }
                lines.iter().try_for_each(|line| self.line(process, line, &mut f))?;
            }
        }
        self.join(until_ns == u64::MAX, &mut f)?;
        self.look_at_changes(until_ns, f)
    }

    /// Calls `f` with the refused requests, both ends as one finding if processes of the command have both.
    fn join(&mut self, is_end: bool, mut f: impl FnMut(Finding) -> Outcome) -> Outcome {
        let is_over = |until: u64| is_end || sys::now_ns() >= until;
        let (reasons, requests): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(_, finding)| finding.kind == FindingKind::RefusedRequest);
        for (until, mut finding) in requests {
            let reason = reasons.iter().find(|(_, reason)| reason.ends.map(|(a, b)| (b, a)) == finding.ends);
            match reason {
                Some((_, reason)) => finding.explain(reason),
                None if !is_over(until) => {
                    self.waiting.push((until, finding));
                    continue;
                }
                None => {}
            }
            self.told.extend(finding.ends);
            f(finding)?;
        }
        for (until, reason) in reasons {
            let is_told = reason.ends.is_some_and(|(qp, peer)| self.told.contains(&(peer, qp)));
            match is_over(until) {
                _ if is_told => {}
                true => f(reason)?,
                false => self.waiting.push((until, reason)),
            }
        }
        Ok(())
    }

    /// Looks at connections up to a time, in the order of time.
    fn look_at_changes(&mut self, until_ns: u64, mut f: impl FnMut(Finding) -> Outcome) -> Outcome {
        self.changes.sort_by_key(|(at, ..)| *at);
        let due = self.changes.partition_point(|(at, ..)| *at < until_ns);
        for (_, process, change) in self.changes.drain(..due) {
            match change {
                Change::Connected(mut end) => {
                    let command = self.files.get(&process).map(|reader| reader.command.clone());
                    (end.process, end.command) = (process, command.unwrap_or_default());
                    self.ends.add(end).into_iter().try_for_each(&mut f)?;
                }
                Change::Gone(qp) => self.ends.remove(qp).into_iter().try_for_each(&mut f)?,
            }
        }
        Ok(())
    }

    /// Without files, for the fuzz target.
    #[cfg(feature = "fuzz")]
    pub(super) fn in_memory() -> Self {
        Self::new(Dir::prove(std::path::Path::new("/"), sys::Walk::default()).expect("the root directory"))
    }

    /// As [`read_rest`](Self::read_rest), without files.
    #[cfg(feature = "fuzz")]
    pub(super) fn rest(&mut self, mut f: impl FnMut(Finding) -> Outcome) -> Outcome {
        self.join(true, &mut f)?;
        self.look_at_changes(u64::MAX, &mut f)?;
        self.ends.rest().into_iter().try_for_each(f)
    }

    /// Takes one line of the file of a process. The program may write there what it likes: what is no finding
    /// is left out.
    pub(super) fn line(
        &mut self,
        process: u32,
        line: &str,
        f: &mut impl FnMut(Finding) -> Outcome,
    ) -> Outcome {
        let reader = self.files.entry(process).or_default();
        let Ok(line) = serde_json::from_str(line) else {
            reader.strange += 1;
            return Ok(());
        };
        match line {
            Line::Process { command } => reader.command = command,
            Line::Finding(finding) => {
                match (finding.kind, finding.ends) {
                    (FindingKind::NoAnswer, Some((qp, peer))) => self.ends.unanswered(qp, peer),
                    (FindingKind::ReceiverNotReady, Some((qp, peer))) => self.ends.not_ready(qp, peer),
                    _ => {}
                }
                let finding = Finding { process, command: reader.command.clone(), ..finding };
                if matches!(
                    finding.kind,
                    FindingKind::RemoteAccess
                        | FindingKind::RemoteInvalidRequest
                        | FindingKind::RefusedRequest
                ) {
                    self.waiting.push((sys::now_ns() + REFUSED_NS, finding));
                    return Ok(());
                }
                return f(finding);
            }
            Line::End(end) => self.changes.push((end.at, process, Change::Connected(end))),
            Line::Gone { at, qp } => {
                self.changes.push((at, process, Change::Gone(qp)));
                self.ended.push((process, qp, at));
            }
            Line::Link(link) => reader.links.entry(link.qp).or_default().push(link),
            Line::Place { site, stacks } => {
                reader.places.extend(stacks.into_iter().map(|stack| (site, stack)));
            }
            Line::Region { at, key, first, length } => {
                let region = Region { first, length, from: at, until: u64::MAX };
                reader.regions.entry(key).or_default().push(region);
            }
            Line::RegionEnd { at, key } => {
                let last = reader.regions.get_mut(&key).and_then(|regions| regions.last_mut());
                last.into_iter().for_each(|region| region.until = at);
            }
        }
        Ok(())
    }

    /// Lines that were no findings, and files that could not be read.
    pub(super) fn strange(&self) -> u64 {
        self.files.values().map(|reader| reader.strange).sum()
    }
}

/// The number and the token of the process that writes a file: `NUMBER-TOKEN.jsonl`.
fn parse_name(name: &OsStr) -> Option<(u32, u64)> {
    let (number, token) = name.to_str()?.strip_suffix(".jsonl")?.split_once('-')?;
    Some((number.parse().ok()?, u64::from_str_radix(token, 16).ok()?))
}

impl Reader {
    /// The whole lines that were added.
    fn lines(&mut self, dir: &Dir, name: &OsStr) -> Vec<String> {
        let mut bytes = Vec::new();
        let read = dir.open(name).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.position))?;
            file.take(ADDED_MAX).read_to_end(&mut bytes)
        });
        if read.is_err() {
            // Not the file that the library made.
            self.strange = self.strange.max(1);
            return Vec::new();
        }
        let mut whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole == 0 && bytes.len() as u64 == ADDED_MAX {
            // A line without an end would be read for ever.
            whole = bytes.len();
        }
        self.position += whole as u64;
        String::from_utf8_lossy(&bytes[..whole]).lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use sys::Walk;

    use super::*;

    /// An empty private directory, open and by its path.
    fn scratch() -> (Dir, PathBuf) {
        let path = Path::new("/tmp").join(format!("roxie-findings-{:016x}", sys::random_u64()));
        let dir = Dir::prove(&path, Walk { make: Some(0o700), ..Walk::default() }).expect("made");
        (dir, path)
    }

    #[test]
    fn what_a_hostile_process_writes_is_left_out_and_counted() {
        let (open, dir) = scratch();
        let finding = r#"{"type":"finding","kind":"leaked-mr","text":"t","stacks":[]}"#;
        let lines = [b"\xff\xfe\n{}\n[[[[\n".to_vec(), format!("{finding}\n").into_bytes()].concat();
        fs::write(dir.join("7-00000000000000aa.jsonl"), lines).expect("written");
        std::os::unix::fs::symlink("/dev/zero", dir.join("8-00000000000000aa.jsonl")).expect("a link");
        fs::create_dir(dir.join("9-00000000000000aa.jsonl")).expect("a directory");
        let (mut findings, mut seen) = (Findings::new(open), 0);
        findings
            .read_rest(|_| {
                seen += 1;
                Ok(())
            })
            .expect("the rest is readable");
        assert_eq!((seen, findings.strange()), (1, 5));
        fs::remove_dir_all(dir).expect("cleaned");
    }

    #[test]
    fn each_whole_line_is_read_once() {
        let (open, dir) = scratch();
        let file = dir.join("7-00000000000000aa.jsonl");
        let finding = r#"{"type":"finding","kind":"leaked-mr","text":"t","stacks":[]}"#;
        let started = r#"{"type":"process","command":"./prog"}"#;
        fs::write(&file, format!("{started}\n{finding}\n{}", &finding[..9])).expect("written");
        let mut findings = Findings::new(open);
        let mut seen = Vec::new();
        let mut read = |findings: &mut Findings| {
            findings.read(|f| {
                seen.push((f.process, f.kind, f.command));
                Ok(())
            })
        };
        read(&mut findings).expect("readable");
        read(&mut findings).expect("readable");
        fs::write(&file, format!("{started}\n{finding}\n{finding}\n")).expect("written");
        read(&mut findings).expect("readable");
        let one = (7, FindingKind::LeakedMr, "./prog".to_owned());
        assert_eq!(seen, [one.clone(), one]);
        assert_eq!(findings.processes(), 1);
        fs::remove_dir_all(dir).expect("cleaned");
    }

    #[test]
    fn a_key_names_the_memory_of_its_time() {
        let (open, dir) = scratch();
        let begin = |at: u64, first: u64| {
            format!(r#"{{"type":"region","at":{at},"key":9,"first":{first},"length":10}}"#)
        };
        let end = r#"{"type":"regionend","at":20,"key":9}"#;
        let lines = [begin(10, 100), end.to_owned(), begin(30, 500)].join("\n") + "\n";
        fs::write(dir.join("7-0a.jsonl"), lines).expect("written");
        let mut findings = Findings::new(open);
        findings.read(|_| Ok(())).expect("readable");
        let has = |first, at| findings.has_memory(7, 9, (first, first + 10), at);
        assert!(has(100, 10) && has(100, 20) && has(500, 30));
        assert!(!has(100, 9) && !has(100, 21) && !has(100, 30) && !has(500, 20));
        fs::remove_dir_all(dir).expect("cleaned");
    }

    /// The peer writes its reason later; without one the request is told after a second.
    #[test]
    fn both_ends_of_a_refused_request_are_one_finding() {
        let (open, dir) = scratch();
        let line = |kind: &str, text: &str, ends: &str, what: &str| {
            let stacks = format!(r#"[{{"what":"{what}","thread":"t","frames":[]}}]"#);
            format!(r#"{{"type":"finding","kind":"{kind}","text":"{text}","ends":{ends},"stacks":{stacks}}}"#)
                + "\n"
        };
        let mut findings = Findings::new(open);
        let mut seen = Vec::new();
        let mut read = |findings: &mut Findings, is_rest: bool| {
            let add = |f: Finding| {
                seen.push((f.kind, f.text, f.stacks.into_iter().map(|stack| stack.what).collect::<Vec<_>>()));
                Ok(())
            };
            if is_rest { findings.read_rest(add) } else { findings.read(add) }.expect("readable");
            seen.len()
        };
        fs::write(dir.join("1-0a.jsonl"), line("remote-access", "refused.", "[1,2]", "posted"))
            .expect("written");
        assert_eq!(read(&mut findings, false), 0, "it waits for the reason");
        let reasons = [("[2,1]", "its flags."), ("[8,9]", "alone.")]
            .map(|(ends, text)| line("refused-request", text, ends, "flags set"));
        fs::write(dir.join("2-0a.jsonl"), reasons.concat()).expect("written");
        assert_eq!(read(&mut findings, false), 1);
        assert_eq!(read(&mut findings, true), 2);
        let both = ["flags set", "posted"].map(str::to_owned).to_vec();
        assert_eq!(seen[0], (FindingKind::RemoteAccess, "refused. At the peer: its flags.".to_owned(), both));
        assert_eq!(seen[1].1, "alone.");
        fs::remove_dir_all(dir).expect("cleaned");
    }

    /// Two processes connect two queue pairs twice; each of their files is read as a whole.
    #[test]
    fn connections_of_several_processes_are_looked_at_in_the_order_of_time() {
        let (open, dir) = scratch();
        let end = |at: u64, qp: u32, peer: u32, psn: u32| {
            let numbers = format!(r#""at":{at},"qp":{qp},"peer":{peer},"sq_psn":{psn},"rq_psn":{psn}"#);
            let path = r#""local":"::1","remote":"::1","is_rts":true,"path_mtu":1024"#;
            let reads = r#""max_rd_atomic":1,"max_dest_rd_atomic":1,"is_rc":true"#;
            let times = r#""timeout":14,"rnr_retry":7,"min_rnr_timer":12"#;
            format!(r#"{{"type":"end",{numbers},{path},{reads},{times},"stacks":[]}}"#)
        };
        let gone = |at: u64, qp: u32| format!(r#"{{"type":"gone","at":{at},"qp":{qp}}}"#);
        // Both have the same number, as in two PID namespaces.
        for (process, qp, peer) in [(1_u64, 1, 2), (2, 2, 1)] {
            let lines = [end(process, qp, peer, 5), gone(10 + process, qp), end(20 + process, qp, peer, 6)];
            fs::write(dir.join(format!("9-{process}.jsonl")), lines.join("\n") + "\n").expect("written");
        }
        let (mut findings, mut seen) = (Findings::new(open), Vec::new());
        let mut read = |findings: &mut Findings, until| {
            let add = |f: Finding| {
                seen.push(f.kind);
                Ok(())
            };
            findings.read_until(until, add).expect("readable");
            seen.len()
        };
        assert_eq!(read(&mut findings, 11), 0);
        assert_eq!(read(&mut findings, u64::MAX), 0);
        fs::write(dir.join("9-3.jsonl"), end(30, 1, 2, 7) + "\n").expect("written");
        assert_eq!(read(&mut findings, 30), 0, "not yet");
        assert_eq!(read(&mut findings, 31), 2, "{seen:?}");
        fs::remove_dir_all(dir).expect("cleaned");
    }
}
