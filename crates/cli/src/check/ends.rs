//! Compares the two ends of each connection, if processes of the command have both.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use roxie::finding::{FindingKind, RECEIVE_REFUSED};
use serde::Deserialize;

use super::finding::{Finding, Stack};

/// The attributes of a queue pair in RTR or RTS.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct End {
    /// When it was made ([`now_ns`](sys::now_ns)).
    pub(super) at: u64,
    qp: u32,
    peer: u32,
    local: IpAddr,
    remote: IpAddr,
    is_rts: bool,
    path_mtu: u32,
    sq_psn: u32,
    rq_psn: u32,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    is_rc: bool,
    timeout: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    stacks: Vec<Stack>,
    /// The process, and its command line.
    #[serde(skip)]
    pub(super) process: u32,
    #[serde(skip)]
    pub(super) command: String,
}

/// The ends that are known, by their queue pair numbers.
#[derive(Debug, Default)]
pub(super) struct Ends {
    known: HashMap<u32, End>,
    /// Sender, receiver and kind of the findings so far: later transitions find them again.
    told: HashSet<(u32, u32, FindingKind)>,
    /// Queue pairs that got no answer of their peers.
    unanswered: HashSet<(u32, u32)>,
    /// Queue pairs with a peer that had no receive for too long.
    not_ready: HashSet<(u32, u32)>,
}

impl Ends {
    /// Adds an end; returns what does not fit between it and its peer.
    pub(super) fn add(&mut self, end: End) -> Vec<Finding> {
        let mut found = Vec::new();
        if let Some(peer) = self.known.get(&end.peer).filter(|peer| peer.is_peer_of(&end)) {
            for (sender, receiver) in [(&end, peer), (peer, &end)] {
                for (kind, text) in mismatch(sender, receiver) {
                    if !self.told.insert((sender.qp, receiver.qp, kind)) {
                        continue;
                    }
                    // For what both must have in common, the end that came last is the place to look at.
                    let (first, other) =
                        if kind == FindingKind::EndsPathMtu { (&end, peer) } else { (sender, receiver) };
                    found.push(finding(kind, text, first, other));
                }
            }
        }
        self.known.insert(end.qp, end);
        found
    }

    /// A queue pair got no answer of its peer.
    pub(super) fn unanswered(&mut self, qp: u32, peer: u32) {
        self.unanswered.insert((qp, peer));
    }

    /// A queue pair gave up because its peer had no receive.
    pub(super) fn not_ready(&mut self, qp: u32, peer: u32) {
        self.not_ready.insert((qp, peer));
    }

    /// A queue pair is not connected any more. Its peer is not either: both may get other attributes now, one
    /// after the other, and only new ones belong together. Returns why one of them got no answer, if its peer
    /// belongs to another connection.
    pub(super) fn remove(&mut self, qp: u32) -> Vec<Finding> {
        let found = self.explain(|ends| ends.0 == qp || ends.1 == qp);
        if let Some(end) = self.known.remove(&qp)
            && self.known.get(&end.peer).is_some_and(|peer| peer.is_peer_of(&end))
        {
            self.known.remove(&end.peer);
        }
        self.told.retain(|(sender, receiver, _)| *sender != qp && *receiver != qp);
        found
    }

    /// The findings of [`remove`](Self::remove) for the queue pairs that are still connected at the end.
    pub(super) fn rest(&mut self) -> Vec<Finding> {
        self.explain(|_| true)
    }

    fn explain(&mut self, is_requested: impl Fn(&(u32, u32)) -> bool) -> Vec<Finding> {
        let requested: Vec<(u32, u32)> = self.unanswered.extract_if(&is_requested).collect();
        let impatient: Vec<(u32, u32)> = self.not_ready.extract_if(&is_requested).collect();
        let apart = requested.into_iter().filter_map(|(qp, peer)| self.apart(qp, peer));
        apart.chain(impatient.into_iter().filter_map(|(qp, peer)| self.retries(qp, peer))).collect()
    }

    /// For how long an end waited for a receive of its peer.
    fn retries(&self, qp: u32, of_peer: u32) -> Option<Finding> {
        let (end, peer) = (self.known.get(&qp)?, self.known.get(&of_peer)?);
        if !end.is_peer_of(peer) || !peer.is_peer_of(end) {
            return None;
        }
        let (retries, timer) = (end.rnr_retry, peer.min_rnr_timer);
        let wait_us = wire::rnr_timer_ns(timer) / 1000;
        let after = match retries {
            0 => "at once if there is no receive".to_owned(),
            1 => "if there is no receive after that time".to_owned(),
            _ => format!("if there is no receive for {retries} times that time"),
        };
        let text = format!(
            "rnr_retry of queue pair {qp:#08x} is {retries}, min_rnr_timer of its peer {of_peer:#08x} is \
             {timer} ({wait_us} us): a SEND fails {after}; rnr_retry 7 has no limit"
        );
        let mut found = finding(FindingKind::EndsRnr, text, end, peer);
        if let Some(at) = found.stacks.iter().position(|stack| stack.what == RECEIVE_REFUSED) {
            found.text += ". ibv_post_recv of the peer was refused at least once because its receive queue \
                           was full (max_recv_wr)";
            found.stacks.swap(0, at);
        }
        Some(found)
    }

    /// Why an end got no answer: its peer belongs to another connection. Without a failure this may be the
    /// moment before the peer is connected again.
    fn apart(&self, qp: u32, of_peer: u32) -> Option<Finding> {
        let (end, peer) = (self.known.get(&qp)?, self.known.get(&of_peer)?);
        if peer.peer != end.qp {
            let text = format!(
                "dest_qp_num of queue pair {qp:#08x} is {of_peer:#08x}, but dest_qp_num of {of_peer:#08x} is \
                 {:#08x}; each of two ends must name the other",
                peer.peer
            );
            return Some(finding(FindingKind::EndsQpn, text, end, peer));
        }
        let (ours, theirs) = ((end.local, end.remote), (peer.local, peer.remote));
        (ours != (theirs.1, theirs.0)).then(|| {
            let text = format!(
                "queue pair {qp:#08x} is connected from {} to {}, but its peer {of_peer:#08x} from {} to {}; \
                 look at dgid and sgid_index of both ends",
                ours.0, ours.1, theirs.0, theirs.1
            );
            finding(FindingKind::EndsGid, text, end, peer)
        })
    }
}

fn finding(kind: FindingKind, text: String, end: &End, peer: &End) -> Finding {
    let mut stacks = end.stacks.clone();
    let of_peer = peer.stacks.iter().cloned();
    stacks.extend(of_peer.map(|stack| Stack { process: Some(peer.process), ..stack }));
    let (command, process) = (end.command.clone(), end.process);
    Finding { kind, text, stacks, ends: None, failed: None, process, command }
}

impl End {
    fn is_peer_of(&self, other: &End) -> bool {
        self.peer == other.qp && self.remote == other.local && self.local == other.remote
    }
}

/// What `sender` sends and `receiver` does not take.
fn mismatch(sender: &End, receiver: &End) -> Vec<(FindingKind, String)> {
    let mut found = Vec::new();
    let mut add = |kind, (what, ours): (&str, u32), (its, theirs): (&str, u32), rule: &str| {
        let (qp, peer) = (sender.qp, receiver.qp);
        let text = format!(
            "{what} of queue pair {qp:#08x} is {ours}, {its} of its peer {peer:#08x} is {theirs}; {rule}"
        );
        found.push((kind, text));
    };
    if sender.path_mtu != receiver.path_mtu && sender.qp <= receiver.qp {
        let (ours, theirs) = (("path_mtu", sender.path_mtu), ("path_mtu", receiver.path_mtu));
        add(FindingKind::EndsPathMtu, ours, theirs, "both ends need the same");
    }
    if !sender.is_rts {
        return found;
    }
    if sender.sq_psn != receiver.rq_psn {
        let (ours, theirs) = (("sq_psn", sender.sq_psn), ("rq_psn", receiver.rq_psn));
        add(FindingKind::EndsPsn, ours, theirs, "they must be equal, or every request is dropped");
    }
    // Once, if both are 0.
    let has_both = sender.is_rc && receiver.is_rts;
    if has_both && sender.timeout == 0 && (receiver.timeout > 0 || sender.qp <= receiver.qp) {
        let (ours, theirs) = (("timeout", 0), ("timeout", receiver.timeout.into()));
        add(FindingKind::EndsTimeout, ours, theirs, "with 0 a queue pair waits for ever if a packet is lost");
    }
    if sender.max_rd_atomic > receiver.max_dest_rd_atomic {
        let ours = ("max_rd_atomic", sender.max_rd_atomic.into());
        let theirs = ("max_dest_rd_atomic", receiver.max_dest_rd_atomic.into());
        add(FindingKind::EndsReads, ours, theirs, "the peer refuses more READs and atomics than it takes");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(qp: u32, peer: u32) -> End {
        let address = IpAddr::from([10, 0, 0, 1]);
        End {
            at: 0,
            qp,
            peer,
            local: address,
            remote: address,
            is_rts: true,
            path_mtu: 1024,
            sq_psn: 7,
            rq_psn: 7,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            is_rc: true,
            timeout: 14,
            rnr_retry: 7,
            min_rnr_timer: 12,
            stacks: Vec::new(),
            process: 1,
            command: String::new(),
        }
    }

    fn kinds(first: End, second: End) -> Vec<&'static str> {
        let mut ends = Ends::default();
        assert!(ends.add(first).is_empty(), "its peer is not known");
        ends.add(second).into_iter().map(|finding| finding.kind.name()).collect()
    }

    #[test]
    fn ends_that_fit_give_no_finding() {
        assert!(kinds(end(1, 2), end(2, 1)).is_empty());
        let other_host = End { local: IpAddr::from([10, 0, 0, 9]), path_mtu: 512, ..end(2, 1) };
        assert!(kinds(end(1, 2), other_host).is_empty());
        let not_yet_sending = End { is_rts: false, sq_psn: 0, ..end(2, 1) };
        assert!(kinds(end(1, 2), not_yet_sending).is_empty());
    }

    #[test]
    fn only_ends_of_the_same_connection_are_compared() {
        let again = |qp, peer| End { sq_psn: 9, rq_psn: 9, ..end(qp, peer) };
        let mut ends = Ends::default();
        let mut found = [ends.add(end(1, 2)), ends.add(end(2, 1))].concat();
        // One after the other, and both at first.
        found.extend(ends.remove(1));
        found.extend(ends.add(again(1, 2)));
        found.extend(ends.remove(2));
        found.extend(ends.add(again(2, 1)));
        found.extend([1, 2].into_iter().flat_map(|qp| ends.remove(qp)));
        found.extend([ends.add(end(1, 2)), ends.add(end(2, 1))].concat());
        assert!(found.is_empty(), "{found:?}");
        found.extend(ends.remove(2));
        found.extend([ends.add(end(1, 2)), ends.add(again(2, 1))].concat());
        assert_eq!(found.len(), 2, "PSNs of both directions");
    }

    #[test]
    fn what_does_not_fit_is_told_with_both_values() {
        assert_eq!(kinds(end(1, 2), End { path_mtu: 512, ..end(2, 1) }), ["ends-path-mtu"]);
        assert_eq!(kinds(end(1, 2), End { rq_psn: 9, ..end(2, 1) }), ["ends-psn"]);
        assert_eq!(kinds(end(1, 2), End { max_dest_rd_atomic: 1, ..end(2, 1) }), ["ends-reads"]);
    }

    #[test]
    fn the_sender_is_named_first_and_each_stack_has_its_process() {
        let stack = |thread: &str| {
            let (what, thread) = ("connected".to_owned(), thread.to_owned());
            vec![Stack { process: None, what, thread, frames: Vec::new() }]
        };
        let sender = || End { process: 11, sq_psn: 5, stacks: stack("sender"), ..end(1, 2) };
        let receiver = || End { process: 22, sq_psn: 7, rq_psn: 7, stacks: stack("receiver"), ..end(2, 1) };
        for ends in [[sender(), receiver()], [receiver(), sender()]] {
            let mut all = Ends::default();
            let found: Vec<Finding> = ends.into_iter().flat_map(|end| all.add(end)).collect();
            let [finding] = &found[..] else { panic!("{found:?}") };
            assert!(finding.kind == FindingKind::EndsPsn && finding.process == 11);
            let stacks: Vec<_> = finding.stacks.iter().map(|stack| (&*stack.thread, stack.process)).collect();
            assert_eq!(stacks, [("sender", None), ("receiver", Some(22))]);
        }
    }

    #[test]
    fn a_timeout_of_0_is_told_once_for_two_ends() {
        let forever = |qp, peer| End { timeout: 0, ..end(qp, peer) };
        assert_eq!(kinds(end(1, 2), forever(2, 1)), ["ends-timeout"]);
        assert_eq!(kinds(forever(1, 2), end(2, 1)), ["ends-timeout"]);
        assert_eq!(kinds(forever(1, 2), forever(2, 1)), ["ends-timeout"]);
        let unreliable = |qp, peer| End { is_rc: false, ..forever(qp, peer) };
        assert!(kinds(unreliable(1, 2), unreliable(2, 1)).is_empty());
    }

    #[test]
    fn retries_and_timer_are_told_after_a_failure_only() {
        for fails in [false, true] {
            let mut ends = Ends::default();
            ends.add(End { rnr_retry: 1, ..end(1, 2) });
            ends.add(end(2, 1));
            if fails {
                ends.not_ready(1, 2);
            }
            let found: Vec<_> = ends.rest().into_iter().map(|finding| finding.text).collect();
            assert_eq!(found.len(), usize::from(fails), "{found:?}");
            assert!(found.iter().all(|text| text.contains("rnr_retry of queue pair 0x000001 is 1,")));
        }
    }

    #[test]
    fn a_peer_of_another_connection_is_told_after_a_failure_only() {
        let elsewhere = |qp, peer| End { remote: IpAddr::from([10, 0, 0, 9]), ..end(qp, peer) };
        for (mine, theirs, kind) in [
            (end(1, 2), end(2, 3), Some("ends-qpn")),
            (elsewhere(1, 2), end(2, 1), Some("ends-gid")),
            (end(1, 2), end(2, 1), None),
        ] {
            for (fails, removed) in [(false, 1), (true, 1), (true, 2), (true, 0)] {
                let mut ends = Ends::default();
                assert!(ends.add(theirs.clone()).is_empty() && ends.add(mine.clone()).is_empty());
                if fails {
                    ends.unanswered(1, 2);
                }
                let found = if removed == 0 { ends.rest() } else { ends.remove(removed) };
                let found: Vec<_> = found.into_iter().map(|finding| finding.kind.name()).collect();
                assert_eq!(found.first().copied(), kind.filter(|_| fails));
            }
        }
    }
}
