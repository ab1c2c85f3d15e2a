//! Compares the two ends of each connection, if processes of the command have both.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use serde::Deserialize;

use super::findings::{Finding, Stack};

/// The attributes of a queue pair in RTR or RTS.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct End {
    /// When it was made ([`now_ns`](sys::now_ns)).
    pub(super) at: u64,
    qp: u32,
    peer: u32,
    local: IpAddr,
    remote: IpAddr,
    state: String,
    path_mtu: u32,
    sq_psn: u32,
    rq_psn: u32,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    stacks: Vec<Stack>,
}

/// The ends that are known, by their queue pair numbers.
#[derive(Debug, Default)]
pub(super) struct Ends {
    known: HashMap<u32, End>,
    /// Sender, receiver and kind of the findings so far: later transitions find them again.
    told: HashSet<(u32, u32, &'static str)>,
}

impl Ends {
    /// Adds an end; returns what does not fit between it and its peer.
    pub(super) fn add(&mut self, end: End, process: u32) -> Vec<Finding> {
        let mut found = Vec::new();
        if let Some(peer) = self.known.get(&end.peer).filter(|peer| peer.is_peer_of(&end)) {
            for (sender, receiver) in [(&end, peer), (peer, &end)] {
                for (kind, text) in mismatch(sender, receiver) {
                    if !self.told.insert((sender.qp, receiver.qp, kind)) {
                        continue;
                    }
                    let stacks = [&end, peer].into_iter().flat_map(|end| end.stacks.clone()).collect();
                    let (kind, command) = (kind.to_owned(), String::new());
                    found.push(Finding { kind, text, stacks, ends: None, process, command });
                }
            }
        }
        self.known.insert(end.qp, end);
        found
    }

    /// A queue pair is not connected any more. Its peer is not either: both may get other attributes now, one
    /// after the other, and only new ones belong together.
    pub(super) fn remove(&mut self, qp: u32) {
        let Some(end) = self.known.remove(&qp) else { return };
        if self.known.get(&end.peer).is_some_and(|peer| peer.is_peer_of(&end)) {
            self.known.remove(&end.peer);
        }
        self.told.retain(|(sender, receiver, _)| *sender != qp && *receiver != qp);
    }
}

impl End {
    fn is_peer_of(&self, other: &End) -> bool {
        self.peer == other.qp && self.remote == other.local && self.local == other.remote
    }
}

/// What `sender` sends and `receiver` does not take.
fn mismatch(sender: &End, receiver: &End) -> Vec<(&'static str, String)> {
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
        add("ends-path-mtu", ours, theirs, "both ends need the same");
    }
    if sender.state != "RTS" {
        return found;
    }
    if sender.sq_psn != receiver.rq_psn {
        let (ours, theirs) = (("sq_psn", sender.sq_psn), ("rq_psn", receiver.rq_psn));
        add("ends-psn", ours, theirs, "they must be equal, or every request is dropped");
    }
    if sender.max_rd_atomic > receiver.max_dest_rd_atomic {
        let ours = ("max_rd_atomic", sender.max_rd_atomic.into());
        let theirs = ("max_dest_rd_atomic", receiver.max_dest_rd_atomic.into());
        add("ends-reads", ours, theirs, "the peer refuses more READs and atomics than it takes");
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
            state: "RTS".to_owned(),
            path_mtu: 1024,
            sq_psn: 7,
            rq_psn: 7,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            stacks: Vec::new(),
        }
    }

    fn kinds(first: End, second: End) -> Vec<String> {
        let mut ends = Ends::default();
        assert!(ends.add(first, 1).is_empty(), "its peer is not known");
        ends.add(second, 1).into_iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn ends_that_fit_give_no_finding() {
        assert!(kinds(end(1, 2), end(2, 1)).is_empty());
        let other_host = End { local: IpAddr::from([10, 0, 0, 9]), path_mtu: 512, ..end(2, 1) };
        assert!(kinds(end(1, 2), other_host).is_empty());
        let not_yet_sending = End { state: "RTR".to_owned(), sq_psn: 0, ..end(2, 1) };
        assert!(kinds(end(1, 2), not_yet_sending).is_empty());
    }

    #[test]
    fn only_ends_of_the_same_connection_are_compared() {
        let again = |qp, peer| End { sq_psn: 9, rq_psn: 9, ..end(qp, peer) };
        let mut ends = Ends::default();
        let mut found = [ends.add(end(1, 2), 1), ends.add(end(2, 1), 1)].concat();
        // One after the other, and both at first.
        ends.remove(1);
        found.extend(ends.add(again(1, 2), 1));
        ends.remove(2);
        found.extend(ends.add(again(2, 1), 1));
        [1, 2].into_iter().for_each(|qp| ends.remove(qp));
        found.extend([ends.add(end(1, 2), 1), ends.add(end(2, 1), 1)].concat());
        assert!(found.is_empty(), "{found:?}");
        ends.remove(2);
        found.extend([ends.add(end(1, 2), 1), ends.add(again(2, 1), 1)].concat());
        assert_eq!(found.len(), 2, "PSNs of both directions");
    }

    #[test]
    fn what_does_not_fit_is_told_with_both_values() {
        assert_eq!(kinds(end(1, 2), End { path_mtu: 512, ..end(2, 1) }), ["ends-path-mtu"]);
        assert_eq!(kinds(end(1, 2), End { rq_psn: 9, ..end(2, 1) }), ["ends-psn"]);
        assert_eq!(kinds(end(1, 2), End { max_dest_rd_atomic: 1, ..end(2, 1) }), ["ends-reads"]);
    }
}
