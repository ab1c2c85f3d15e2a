//! The check for lost wake-ups: while a progress thread sleeps, its engine has no work that it should do now.

use roxie::verbs::{Device, Due};

/// Tolerance: a sleep may end this long after the work is due (nanoseconds).
const LATE_NS: u64 = 2_000;
/// How long a message may be held for an application that left completions in its CQ and then computes
/// (nanoseconds): the short sleep of a progress thread after packets (`Tuning::brief_sleep_ns`), at double.
const HELD_NS: u64 = 500_000;

/// A sleeping progress thread of a process. All other threads of the process sleep or compute.
pub(super) struct Sleeper {
    pub(super) process: usize,
    pub(super) until_ns: u64,
    pub(super) device: Device,
    /// Packets that its port has got and not sent.
    pub(super) unflushed: usize,
}

impl Sleeper {
    /// Describes the work that is due before this sleep ends; `None` if there is none.
    pub(super) fn late_work(&self, now: u64) -> Option<String> {
        let Self { process, until_ns, device, unflushed } = self;
        let sleeps = format!("process {process}: at {now} the progress thread sleeps until {until_ns}, but");
        let Some(due) = device.due() else {
            return Some(format!("{sleeps} one of its threads holds the engine's lock"));
        };
        if *unflushed > 0 {
            return Some(format!("{sleeps} its port has {unflushed} packets that were not flushed"));
        }
        let Due { deadline, has_ready, forgotten, is_watching, has_sleeper } = due;
        if let Some(qpn) = forgotten {
            return Some(format!("{sleeps} {qpn:?} has packets to send and is neither listed nor blocked"));
        }
        if is_watching {
            return has_sleeper
                .then(|| format!("{sleeps} leaves the port to polling threads with a CQ armed"));
        }
        if has_ready && *until_ns > now + HELD_NS {
            return Some(format!("{sleeps} a queue pair has packets that nothing keeps from leaving"));
        }
        let deadline = deadline?.0.max(now);
        (*until_ns > deadline + LATE_NS).then(|| format!("{sleeps} work is due at {deadline}"))
    }
}
