//! Packets that a hook holds back until a given time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::outgoing::Outgoing;
use roxie::port::OwnedPacket;

/// Most packets held at once: a round trip of 100 ms at 2.5 Gbit/s in packets of 1 KiB. Further ones are
/// dropped, as in the queue of a slow link.
const HELD_MAX: usize = 32_768;

/// A packet that continues later.
#[derive(Debug)]
pub(super) enum Late {
    /// To the transport.
    In(OwnedPacket),
    /// To the port.
    Out(Outgoing),
}

/// The waiting packets, the next one first.
#[derive(Debug, Default)]
pub(super) struct Held {
    heap: BinaryHeap<Reverse<Entry>>,
    /// Orders packets with equal times by arrival.
    count: u64,
}

#[derive(Debug)]
struct Entry {
    due_ns: u64,
    number: u64,
    packet: Late,
}

impl Held {
    /// Adds a packet; false if too many wait.
    pub(super) fn keep(&mut self, due_ns: u64, packet: Late) -> bool {
        if self.heap.len() >= HELD_MAX {
            return false;
        }
        self.count += 1;
        self.heap.push(Reverse(Entry { due_ns, number: self.count, packet }));
        true
    }

    /// When the next packet is due.
    #[inline]
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.0.due_ns)
    }

    /// Removes the next packet if it is due.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<Late> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|entry| entry.0.packet)
    }
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        (self.due_ns, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::FlushIcrc;

    use roxie::port::FlowKey;

    fn packet(number: u8) -> Late {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let key =
            FlowKey { src: ip, dst: ip, dst_slot: 0, tos: 0, ttl: 64, flush_icrc: FlushIcrc::Iba, above: 0 };
        Late::Out(Outgoing { key, sender: None, bytes: vec![number] })
    }

    fn number(packet: Option<Late>) -> Option<u8> {
        match packet? {
            Late::Out(out) => out.bytes.first().copied(),
            Late::In(_) => None,
        }
    }

    #[test]
    fn packets_leave_by_time_and_then_in_order() {
        let mut held = Held::default();
        for (due_ns, name) in [(30, 1), (10, 2), (20, 3), (10, 4), (10, 5)] {
            assert!(held.keep(due_ns, packet(name)));
        }
        assert_eq!((held.next_ns(), number(held.take(9))), (Some(10), None));
        let left: Vec<_> = std::iter::from_fn(|| number(held.take(29))).collect();
        assert_eq!(left, [2, 4, 5, 3]);
        assert_eq!(number(held.take(30)), Some(1));
        assert_eq!(held.next_ns(), None);
    }

    #[test]
    fn the_number_of_held_packets_is_limited() {
        let mut held = Held::default();
        for _ in 0..HELD_MAX {
            assert!(held.keep(1, packet(0)));
        }
        assert!(!held.keep(1, packet(0)));
        assert!(held.take(1).is_some() && held.keep(1, packet(0)));
    }
}
