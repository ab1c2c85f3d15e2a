//! The event queue: what happens at which virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) enum Event {
    /// The oldest frame on the link behind this port arrives at its other end.
    Arrive(u32),
    /// The port has transmitted a frame.
    Free(u32),
    /// The port may no longer, or may again, transmit frames of a priority (PFC).
    Pause { port: u32, priority: u8, is_on: bool },
    /// The host handles the frames that have arrived.
    Poll(u32),
    /// A timer of this end of a connection is due.
    Timer(u32),
    /// The workload starts its next flow.
    Work(u32),
    /// The queues are measured.
    Sample,
}

/// Events in the order of their times; those of the same time in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    added: u64,
}

impl Events {
    pub(crate) fn add(&mut self, at_ps: u64, event: Event) {
        self.added += 1;
        self.heap.push(Reverse((at_ps, self.added, event)));
    }

    pub(crate) fn take(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((at_ps, _, event))| (at_ps, event))
    }

    /// How many events were added.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_as_they_were_added() {
        let mut events = Events::default();
        for (at, event) in [(5, Event::Sample), (1, Event::Poll(9)), (5, Event::Free(1)), (1, Event::Poll(2))]
        {
            events.add(at, event);
        }
        let taken: Vec<_> = std::iter::from_fn(|| events.take()).collect();
        assert_eq!(
            taken,
            [(1, Event::Poll(9)), (1, Event::Poll(2)), (5, Event::Sample), (5, Event::Free(1))]
        );
    }
}
