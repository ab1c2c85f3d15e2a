//! The memory that work requests use, for `roxie check --races`.
//!
//! `ibv_post_send` of a checked process records an [`Access`] before the post, so it precedes the
//! [`Entry::Post`](super::Entry::Post) of the same work request in the events of the thread. A poll records a
//! [`Landing`] for each receive that has completed, after its [`Entry::Poll`](super::Entry::Poll).

use sys::trace::Event;
use wire::{Qpn, Rkey};

/// What a work request does with memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Use {
    /// Reads local memory.
    Send = 0,
    /// Reads local memory, writes remote memory.
    Write = 1,
    /// Reads remote memory, writes local memory.
    Read = 2,
    /// Changes remote memory atomically, writes local memory.
    Atomic = 3,
    /// Reads local memory, writes 8 remote bytes at once.
    AtomicWrite = 4,
    /// None.
    Nothing = 5,
}

/// The memory of a work request that the application posts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Access {
    /// When the post began.
    pub time_ns: u64,
    /// The queue pair.
    pub qpn: Qpn,
    /// What it does.
    pub does: Use,
    /// It is the first of its call: earlier ones without a post were refused.
    pub is_first: bool,
    /// It has `IBV_SEND_FENCE`.
    pub has_fence: bool,
    /// A completion counter shows its completion without a poll.
    pub is_counted: bool,
    /// Number of its call stack in the process.
    pub site: u32,
    /// Remote address and key, for one-sided operations. For a SEND the second one is the number of the
    /// shared receive queue (XRC) or of the queue pair (UD) that receives it.
    pub remote: (u64, Rkey),
    /// Its [`Landing::number`], if it takes a receive.
    pub number: u32,
    /// Addresses and lengths of local memory.
    pub local: Vec<(u64, u32)>,
}

/// The memory of a receive that has completed with success.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Landing {
    /// When the application had polled it.
    pub time_ns: u64,
    /// When it was posted.
    pub posted_ns: u64,
    /// The queue pair that received.
    pub qpn: Qpn,
    /// The shared receive queue of XRC; 0 for others.
    pub srqn: u32,
    /// Its place among the messages of the connection, and of the XRC queue, that take a receive, from 1 on;
    /// 0 if it is not known.
    pub number: u32,
    /// Bytes received, for UD with the GRH area.
    pub bytes: u32,
    /// The sender, for datagrams.
    pub src_qp: Qpn,
    /// Number of the call stack of the post.
    pub site: u32,
    /// Addresses and lengths of its memory; none for a WRITE with immediate data, and if it is not known.
    pub local: Vec<(u64, u32)>,
}

const ACCESS: u8 = 32;
const MORE: u8 = 33;
const LANDING: u8 = 34;
const FIRST: u8 = 1 << 4;
const FENCE: u8 = 1 << 5;
const COUNTED: u8 = 1 << 6;
/// Pieces of memory in the first event of an access, in that of a landing, and in each further one.
const PIECES: (usize, usize, usize) = (2, 1, 3);

impl Access {
    /// Records it in the events of this thread. An error was told by the event before.
    pub fn record(&self) {
        for event in self.events() {
            _ = sys::trace::record(&event);
        }
    }

    fn events(&self) -> Vec<Event> {
        let (head, rest) = self.local.split_at(PIECES.0.min(self.local.len()));
        let (time_ns, id) = (self.time_ns, self.qpn.value());
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = flag(self.is_first, FIRST) | flag(self.has_fence, FENCE);
        let mut first = Event {
            time_ns,
            kind: ACCESS,
            flags: self.does as u8 | flags | flag(self.is_counted, COUNTED),
            count: head.len() as u16,
            id,
            args: [self.remote.0, u64::from(self.remote.1.0) << 32 | u64::from(self.site), 0, 0, 0, 0],
        };
        put(&mut first.args[2..], head);
        // The length of a piece needs the lower half only.
        first.args[3] |= u64::from(self.number) << 32;
        with_more(first, rest)
    }

    /// Takes an event that begins an access.
    #[must_use]
    pub fn parse(event: &Event) -> Option<Access> {
        const USES: [Use; 6] =
            [Use::Send, Use::Write, Use::Read, Use::Atomic, Use::AtomicWrite, Use::Nothing];
        if event.kind != ACCESS {
            return None;
        }
        Some(Access {
            time_ns: event.time_ns,
            qpn: Qpn::new(event.id),
            does: *USES.get(usize::from(event.flags & 15))?,
            is_first: event.flags & FIRST != 0,
            has_fence: event.flags & FENCE != 0,
            is_counted: event.flags & COUNTED != 0,
            site: event.args[1] as u32,
            remote: (event.args[0], Rkey((event.args[1] >> 32) as u32)),
            number: (event.args[3] >> 32) as u32,
            local: pieces(&event.args[2..], event.count),
        })
    }

    /// Adds an event that continues it; others change nothing.
    pub fn extend(&mut self, event: &Event) {
        self.local.extend(more(event, self.qpn));
    }
}

impl Landing {
    /// Records it in the events of this thread. An error was told by the event before.
    pub fn record(&self) {
        for event in self.events() {
            _ = sys::trace::record(&event);
        }
    }

    /// The events that record it.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let (head, rest) = self.local.split_at(PIECES.1.min(self.local.len()));
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let mut first = Event {
            time_ns: self.time_ns,
            kind: LANDING,
            count: head.len() as u16,
            id: self.qpn.value(),
            args: [
                self.posted_ns,
                pair(self.number, self.bytes),
                pair(self.srqn, self.site),
                self.src_qp.value().into(),
                0,
                0,
            ],
            ..Event::default()
        };
        put(&mut first.args[4..], head);
        with_more(first, rest)
    }

    /// Takes an event that begins a landing.
    #[must_use]
    pub fn parse(event: &Event) -> Option<Landing> {
        let [posted_ns, message, receive, src_qp, ..] = event.args;
        (event.kind == LANDING).then(|| Landing {
            time_ns: event.time_ns,
            posted_ns,
            qpn: Qpn::new(event.id),
            srqn: (receive >> 32) as u32,
            number: (message >> 32) as u32,
            bytes: message as u32,
            src_qp: Qpn::new(src_qp as u32),
            site: receive as u32,
            local: pieces(&event.args[4..], event.count),
        })
    }

    /// Adds an event that continues it; others change nothing.
    pub fn extend(&mut self, event: &Event) {
        self.local.extend(more(event, self.qpn));
    }
}

/// The first event, and those of further pieces.
fn with_more(first: Event, rest: &[(u64, u32)]) -> Vec<Event> {
    let (time_ns, id) = (first.time_ns, first.id);
    let mut events = vec![first];
    for pieces in rest.chunks(PIECES.2) {
        let mut more = Event { time_ns, kind: MORE, count: pieces.len() as u16, id, ..Event::default() };
        put(&mut more.args, pieces);
        events.push(more);
    }
    events
}

/// The pieces of an event that continues one of this queue pair.
fn more(event: &Event, qpn: Qpn) -> Vec<(u64, u32)> {
    let is_more = event.kind == MORE && event.id == qpn.value();
    if is_more { pieces(&event.args, event.count) } else { Vec::new() }
}

fn put(args: &mut [u64], pieces: &[(u64, u32)]) {
    for (place, (address, length)) in args.chunks_exact_mut(2).zip(pieces) {
        place.copy_from_slice(&[*address, (*length).into()]);
    }
}

fn pieces(args: &[u64], count: u16) -> Vec<(u64, u32)> {
    args.chunks_exact(2).take(count.into()).map(|piece| (piece[0], piece[1] as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_read_back_from_its_events() {
        for pieces in [0, 1, 2, 3, 6, 30] {
            let access = Access {
                time_ns: 7,
                qpn: Qpn::new(0x12_3456),
                does: Use::AtomicWrite,
                is_first: true,
                has_fence: pieces % 2 == 0,
                is_counted: pieces % 3 == 0,
                site: 9,
                remote: (u64::MAX, Rkey(u32::MAX - 1)),
                number: u32::MAX - 2,
                local: (0..pieces).map(|n| (u64::MAX - n, n as u32)).collect(),
            };
            let events = access.events();
            let mut parsed = Access::parse(&events[0]).expect("an access");
            assert!(events[1..].iter().all(|event| Access::parse(event).is_none()));
            events.iter().for_each(|event| parsed.extend(event));
            assert_eq!(parsed, access);
        }
    }

    #[test]
    fn a_landing_is_read_back_from_its_events() {
        for pieces in [0, 1, 2, 4, 5, 30] {
            let landing = Landing {
                time_ns: 8,
                posted_ns: 7,
                qpn: Qpn::new(0x12_3456),
                srqn: 0xff_fffe,
                number: u32::MAX,
                bytes: u32::MAX - 1,
                src_qp: Qpn::new(0x65_4321),
                site: 9,
                local: (0..pieces).map(|n| (u64::MAX - n, n as u32)).collect(),
            };
            let events = landing.events();
            let mut parsed = Landing::parse(&events[0]).expect("a landing");
            assert!(events.iter().all(|event| Access::parse(event).is_none()));
            events.iter().for_each(|event| parsed.extend(event));
            assert_eq!(parsed, landing);
        }
    }
}
