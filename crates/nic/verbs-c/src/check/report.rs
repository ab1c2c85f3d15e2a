//! The file with the findings of this process: one JSON object a line, written at once, so that findings
//! survive any end of the process.

use std::collections::HashSet;
use std::ffi::{OsStr, c_int};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};

pub(super) use roxie::finding::FindingKind;
use roxie::status::QpStatus;
use roxie::transport::{QpState, QpType};
use roxie::verbs::Qp;
use sys::{Dir, WriteSignals, now_ns, process_token};

use super::options::{OPTIONS, lock};
use super::stack::{Module, Site, modules, stack};

/// Findings that a process reports; more repeat what these say.
const FINDINGS_MAX: usize = 200;

/// What makes two findings one: kind and call stacks.
pub(super) type Key = (FindingKind, Vec<Site>);

pub(super) static REPORTED: LazyLock<Mutex<HashSet<Key>>> = LazyLock::new(Mutex::default);

/// Reports a mistake once. `sites` are call stacks, each with what happened there; the first one is the place
/// to look at.
pub(super) fn report(kind: FindingKind, text: &str, sites: &[(&str, Site)]) {
    report_with(kind, text, sites, "");
}

/// How the process ended, in a finding that may follow from another mistake.
#[derive(Clone, Copy)]
pub(super) enum Failed {
    /// With an exit code; nothing else was reported.
    Exit(c_int),
    /// The same after other findings.
    Beside(c_int),
    /// By a signal, which may end a program that makes no mistake.
    Signal(c_int),
}

/// As [`report`], about a process that has failed: `roxie check` leaves it out if it knows of a mistake of
/// another process, of which it may be the consequence.
pub(super) fn report_of_failed(kind: FindingKind, text: &str, sites: &[(&str, Site)], how: Failed) {
    let (word, end) = match how {
        Failed::Exit(code) => ("exit", format!("the process ended with exit code {code}")),
        Failed::Beside(code) => ("beside", format!("the process ended with exit code {code}")),
        Failed::Signal(libc::SIGTERM) => ("signal", "SIGTERM ended the process".to_owned()),
        Failed::Signal(libc::SIGINT) => ("signal", "SIGINT ended the process".to_owned()),
        Failed::Signal(number) => ("signal", format!("signal {number} ended the process")),
    };
    report_with(kind, &format!("{text}; {end}"), sites, &format!(",\"failed\":\"{word}\""));
}

/// As [`report`], about a connection: the numbers of the queue pair and of its peer, by which `roxie check`
/// finds what happened at the other end.
pub(super) fn report_between(
    kind: FindingKind,
    text: &str,
    sites: &[(&str, Site)],
    ends: Option<(u32, u32)>,
) {
    let ends = ends.map_or_else(String::new, |(qp, peer)| format!(",\"ends\":[{qp},{peer}]"));
    report_with(kind, text, sites, &ends);
}

/// As [`report`], with further members of the object.
fn report_with(kind: FindingKind, text: &str, sites: &[(&str, Site)], members: &str) {
    let key = (kind, sites.iter().map(|(_, site)| *site).collect());
    {
        let mut reported = lock(&REPORTED);
        if reported.len() >= FINDINGS_MAX || !reported.insert(key) {
            return;
        }
    }
    let mut line = format!("{{\"type\":\"finding\",\"kind\":\"{}\",\"text\":", kind.name());
    string(&mut line, text);
    line.push_str(members);
    stacks(&mut line, sites);
    line.push('}');
    append(&line);
}

/// Whether this process has reported a mistake.
pub(super) fn has_reported() -> bool {
    !lock(&REPORTED).is_empty()
}

/// Writes the attributes of a connected queue pair, for the comparison with those of its peer.
pub(super) fn connected(qp: &Qp, sites: &[(&str, Site)]) {
    let Some(status) = qp.status() else { return };
    let min_rnr_timer = qp.query().map_or(0, |attr| attr.min_rnr_timer);
    let (Some(local), Some(remote), Some(peer)) = (status.local, status.remote, status.dest_qpn) else {
        return;
    };
    let mut line = format!(
        "{{\"type\":\"end\",\"at\":{},\"qp\":{},\"peer\":{},\"local\":\"{local}\",\"remote\":\"{remote}\",\
         \"is_rts\":{},\"path_mtu\":{},\"sq_psn\":{},\"rq_psn\":{},\"max_rd_atomic\":{},\
         \"max_dest_rd_atomic\":{},\"is_rc\":{},\"timeout\":{},\"rnr_retry\":{},\
         \"min_rnr_timer\":{min_rnr_timer}",
        now_ns(),
        status.qpn.value(),
        peer.value(),
        qp.state() == QpState::Rts,
        status.path_mtu,
        status.sq_psn.value(),
        status.rq_psn.value(),
        status.max_rd_atomic,
        status.max_dest_rd_atomic,
        qp.ty() == QpType::Rc,
        status.timeout,
        status.rnr_retry
    );
    stacks(&mut line, sites);
    line.push('}');
    append(&line);
}

/// Writes which peer a queue pair posts to, and returns true; false if it has none.
pub(super) fn linked(status: &QpStatus) -> bool {
    let (Some(local), Some(remote), Some(peer)) = (status.local, status.remote, status.dest_qpn) else {
        return false;
    };
    append(&format!(
        "{{\"type\":\"link\",\"at\":{},\"qp\":{},\"peer\":{},\"local\":\"{local}\",\"remote\":\"{remote}\"}}",
        now_ns(),
        status.qpn.value(),
        peer.value(),
    ));
    true
}

/// Writes that a queue pair is not connected any more.
pub(super) fn disconnected(number: u32) {
    append(&format!("{{\"type\":\"gone\",\"at\":{},\"qp\":{number}}}", now_ns()));
}

/// Writes the call stack that the numbers of work requests refer to.
pub(super) fn place(site: Site) {
    let mut line = format!("{{\"type\":\"place\",\"site\":{}", site.number());
    stacks(&mut line, &[("posted", site)]);
    line.push('}');
    append(&line);
}

/// Writes the memory of a region.
pub(super) fn region(key: u32, first: u64, length: u64) {
    let at = now_ns();
    append(&format!(
        "{{\"type\":\"region\",\"at\":{at},\"key\":{key},\"first\":{first},\"length\":{length}}}"
    ));
}

/// Writes that a region was deregistered.
pub(super) fn region_end(key: u32) {
    append(&format!("{{\"type\":\"regionend\",\"at\":{},\"key\":{key}}}", now_ns()));
}

/// Appends the member `stacks`.
fn stacks(line: &mut String, sites: &[(&str, Site)]) {
    let modules = modules();
    line.push_str(",\"stacks\":[");
    for (index, (what, site)) in sites.iter().enumerate() {
        let stack = stack(*site);
        line.push_str(if index == 0 { "{\"what\":" } else { ",{\"what\":" });
        string(line, what);
        line.push_str(",\"thread\":");
        string(line, &stack.thread);
        line.push_str(",\"frames\":[");
        for (index, ip) in stack.frames.iter().enumerate() {
            if index > 0 {
                line.push(',');
            }
            frame(line, &modules, *ip);
        }
        line.push_str("]}");
    }
    line.push(']');
}

/// Writes that this process has opened the device.
pub(super) fn process_started() {
    let mut line = String::from("{\"type\":\"process\",\"command\":");
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    string(&mut line, &words.join(" "));
    line.push('}');
    append(&line);
}

/// `["path of the object file", address in it]`. The address is that of the call, not of the return from it.
fn frame(line: &mut String, modules: &[Module], ip: usize) {
    line.push('[');
    let module = modules.iter().find(|module| module.contains(ip));
    string(line, module.map_or("", |module| &module.path));
    let address = ip.wrapping_sub(module.map_or(0, |module| module.bias)).wrapping_sub(1);
    let _ = write!(line, ",{address}]");
}

/// Appends a JSON string.
fn string(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line.push('"');
}

/// Appends a line to the file of this process. A forked child has a file of its own.
fn append(line: &str) {
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
    let name = format!("{}-{:016x}.jsonl", process::id(), process_token());
    let file = Dir::own(&OPTIONS.dir).map_err(io::Error::from).and_then(|dir| dir.append(OsStr::new(&name)));
    let signals = WriteSignals::block();
    // One write: a reader sees whole lines.
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    drop(signals);
    if let Err(error) = written
        && !HAS_SAID.swap(true, Ordering::Relaxed)
    {
        roxie::notice(format_args!("{}: findings are lost: {error}", OPTIONS.dir.join(name).display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_json() {
        let mut line = String::new();
        string(&mut line, "a \"b\" \\ \n");
        assert_eq!(line, r#""a \"b\" \\ \u000a""#);
    }
}
