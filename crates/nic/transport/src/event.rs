//! Completions and asynchronous events, which the owner of a queue pair passes on.

use std::collections::VecDeque;

use crate::wc::Wc;
use crate::wc_status::WcStatus;

/// A completion or asynchronous event of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QpEvent {
    /// A completion for the send CQ. A completion with an error status counts as solicited.
    SendWc(Wc),
    /// A completion for the receive CQ.
    RecvWc {
        /// XRC: the shared receive queue that it belongs to.
        srqn: Option<u32>,
        /// The completion.
        wc: Wc,
        /// Whether it fires a CQ that is armed for solicited completions only.
        solicited: bool,
    },
    /// An asynchronous event. `SrqLimitReached` belongs to the shared receive queue, every other kind to the
    /// queue pair.
    Async(AsyncEventKind),
    /// `SrqLimitReached` of the XRC shared receive queue with this number.
    XrcLimitReached(u32),
}

/// `ibv_event_type`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
#[allow(missing_docs)] // the names are the verbs ones
pub enum AsyncEventKind {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
    WqFatal = 19,
}

/// Asynchronous events that may wait at a time. Every kind happens at most once per life of a queue pair,
/// except SQ_DRAINED (once per SQD) and SRQ limit events (once per arming).
const ASYNC_ROOM: usize = 32;
/// Initial room for asynchronous events and for receives from a shared queue. A burst of both in one batch
/// makes the room grow once.
const RARE_ROOM: usize = 4;

/// The events that the owner has not polled yet. The queue cannot overflow: a work request holds its queue
/// slot until its completion was polled.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<QpEvent>,
    /// Send completions in the ring; they still hold a send queue slot.
    pub(crate) send: u32,
    /// Receive completions in the ring.
    pub(crate) recv: u32,
    send_max: u32,
    recv_max: u32,
    asynchronous: usize,
}

impl Events {
    /// Makes room for the completions of all sends, and of all receives unless the receive queue is `shared`.
    pub(crate) fn new(send_max: u32, recv_max: u32, shared: bool) -> Self {
        let receives = if shared { 0 } else { recv_max as usize };
        let queue = VecDeque::with_capacity(send_max as usize + receives + RARE_ROOM);
        Self { queue, send: 0, recv: 0, send_max, recv_max, asynchronous: 0 }
    }

    /// Queues a send completion. A successful one goes before a receive completion that is the newest event
    /// and the only receive: the peer's ACK may have arrived behind its reply (`ack_policy.rs`), and hardware
    /// completes the send first.
    #[inline]
    pub(crate) fn push_send(&mut self, wc: Wc) {
        debug_assert!(self.send < self.send_max, "a send completion without a slot");
        let place = match self.queue.back() {
            Some(QpEvent::RecvWc { .. }) if self.recv == 1 && wc.status == WcStatus::Success => {
                self.queue.len() - 1
            }
            _ => self.queue.len(),
        };
        self.queue.insert(place, QpEvent::SendWc(wc));
        self.send += 1;
    }

    #[inline]
    pub(crate) fn push_recv(&mut self, srqn: Option<u32>, wc: Wc, solicited: bool) {
        debug_assert!(self.recv < self.recv_max, "a receive completion without a slot");
        self.queue.push_back(QpEvent::RecvWc { srqn, wc, solicited });
        self.recv += 1;
    }

    /// Whether one more receive completion fits.
    #[inline]
    pub(crate) fn has_recv_room(&self) -> bool {
        self.recv < self.recv_max
    }

    /// Queues an asynchronous event; drops it when too many wait.
    pub(crate) fn push_async(&mut self, kind: AsyncEventKind) {
        self.push_rare(QpEvent::Async(kind));
    }

    /// Queues the limit event of a shared receive queue.
    pub(crate) fn push_limit(&mut self, srqn: Option<u32>) {
        let own = QpEvent::Async(AsyncEventKind::SrqLimitReached);
        self.push_rare(srqn.map_or(own, QpEvent::XrcLimitReached));
    }

    fn push_rare(&mut self, event: QpEvent) {
        if self.asynchronous < ASYNC_ROOM {
            self.queue.push_back(event);
            self.asynchronous += 1;
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<QpEvent> {
        let event = self.queue.pop_front()?;
        match event {
            QpEvent::SendWc(_) => self.send -= 1,
            QpEvent::RecvWc { .. } => self.recv -= 1,
            QpEvent::Async(_) | QpEvent::XrcLimitReached(_) => self.asynchronous -= 1,
        }
        Some(event)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that provokes events cannot make the queue grow while the owner does not poll.
    #[test]
    fn asynchronous_events_that_are_not_polled_are_bounded() {
        let mut events = Events::new(1, 1, false);
        for _ in 0..ASYNC_ROOM + 5 {
            events.push_async(AsyncEventKind::SqDrained);
        }
        let taken = core::iter::from_fn(|| events.pop()).count();
        assert_eq!(taken, ASYNC_ROOM);
        events.push_limit(Some(7));
        assert_eq!(events.pop(), Some(QpEvent::XrcLimitReached(7)));
    }

    /// Events in the order in which they are polled: `s` and `f` are send completions, the second failed.
    fn order(pushed: &str) -> String {
        let mut events = Events::new(4, 4, false);
        for kind in pushed.chars() {
            let status = if kind == 'f' { WcStatus::WrFlushErr } else { WcStatus::Success };
            match kind {
                'r' => events.push_recv(None, Wc::default(), false),
                _ => events.push_send(Wc { status, ..Wc::default() }),
            }
        }
        let name = |event| match event {
            QpEvent::SendWc(wc) if wc.status == WcStatus::Success => 's',
            QpEvent::SendWc(_) => 'f',
            _ => 'r',
        };
        core::iter::from_fn(|| events.pop()).map(name).collect()
    }

    #[test]
    fn sends_complete_before_the_only_receive_of_a_batch() {
        for (pushed, polled) in [("rs", "sr"), ("rss", "ssr"), ("rrs", "rrs"), ("rf", "rf"), ("sr", "sr")] {
            assert_eq!(order(pushed), polled, "{pushed}");
        }
    }
}
