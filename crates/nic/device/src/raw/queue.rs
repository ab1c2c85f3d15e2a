//! A raw packet queue pair or work queue: its receives, the count of its sends, its completions.

use std::sync::Arc;

use transport::{
    AsyncEventKind, Cause, Instant, Memory, PdId, QpCap, QpState, QpType, RecvQueue, RecvWr, VerbsError, Wc,
    WcOpcode, refuse,
};
use wire::Qpn;

use crate::cq::CompletionQueue;
use crate::events::EventQueue;
use crate::events::{AsyncElement, AsyncEvent};
use crate::verbs::{Cq, Pd, Qp, QpInitAttr};

/// Where completions of one kind go, under which number, and where the event of a completion queue that
/// overflows goes.
#[derive(Clone, Debug)]
pub(super) struct Completer {
    pub(super) cq: Arc<CompletionQueue>,
    pub(super) number: u32,
    /// The queue pair in events; `None` for a work queue.
    pub(super) cookie: Option<u64>,
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
}

impl Completer {
    /// Adds a completion; false on an overflow, of which it raises the events.
    pub(super) fn complete(
        &self,
        now: Instant,
        wr_id: u64,
        result: Result<(), Cause>,
        opcode: WcOpcode,
        byte_len: u32,
    ) -> bool {
        let wc = Wc { wr_id, opcode, byte_len, qp_num: self.number, ..Wc::default() }.with_result(result);
        // A frame has no bit that asks for an event, so every receive counts as solicited.
        let is_solicited = opcode == WcOpcode::Recv || result.is_err();
        let is_added = self.cq.adding(now).push(wc, is_solicited);
        if !is_added {
            let cq = AsyncElement::Cq(self.cq.cookie());
            self.events.push(AsyncEvent { kind: AsyncEventKind::CqErr, element: cq });
            if let Some(cookie) = self.cookie {
                let qp = AsyncElement::Qp(cookie);
                self.events.push(AsyncEvent { kind: AsyncEventKind::QpFatal, element: qp });
            }
        }
        is_added
    }
}

/// The sending side of a queue pair.
#[derive(Debug)]
pub(super) struct SendSide {
    pub(super) completer: Completer,
    pub(super) pd: PdId,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    pub(super) all_signaled: bool,
    /// Frames that the kernel has not taken yet.
    pub(super) outstanding: u32,
}

/// A queue pair, or a work queue with the states RESET, RTS (ready) and ERR.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) state: QpState,
    pub(super) receives: RecvQueue,
    pub(super) completer: Completer,
    /// `None` for a work queue.
    pub(super) send: Option<SendSide>,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Delivery {
    Done,
    /// The queue does not receive now, or no receive is posted.
    NoReceive,
    /// The receive failed, and the queue with it.
    Failed,
}

impl Queue {
    /// Puts a frame into the next receive.
    pub(super) fn deliver(&mut self, now: Instant, memory: &impl Memory, frame: &[u8]) -> Delivery {
        if !matches!(self.state, QpState::Rtr | QpState::Rts) {
            return Delivery::NoReceive;
        }
        let Some(wqe) = self.receives.withdraw() else { return Delivery::NoReceive };
        let result = if frame.len() as u64 > wqe.room() {
            Err(Cause::RecvTooShort)
        } else {
            wqe.write(memory, 0, frame).map_err(Cause::of_recv)
        };
        let len = frame.len() as u32;
        let is_added = self.completer.complete(now, wqe.wr_id(), result, WcOpcode::Recv, len);
        if is_added && result.is_ok() { Delivery::Done } else { Delivery::Failed }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL` in RESET and for too many SGEs, `ENOMEM` when the queue is full.
    pub(super) fn post_recv(&mut self, now: Instant, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        if self.state == QpState::Reset {
            let (number, state) = (Qpn::new(self.completer.number), self.state);
            return Err(refuse!(EINVAL, "queue", "state"; state as QpState, number as Qpn;
                "the queue {number} is in {state}; receives can be posted from INIT on"));
        }
        self.receives.post(wr)?;
        if self.state == QpState::Err {
            self.flush_receives(now, Cause::PostedInError);
        }
        Ok(())
    }

    /// Completes every receive with this cause of a flush error.
    pub(super) fn flush_receives(&mut self, now: Instant, cause: Cause) {
        while let Some(wqe) = self.receives.withdraw() {
            // After an overflow the completion queue is lost, and its events were raised.
            let _lost = self.completer.complete(now, wqe.wr_id(), Err(cause), WcOpcode::Recv, 0);
        }
    }

    /// Removes every receive and completion, as the transition to RESET does.
    pub(super) fn clear(&mut self) {
        while self.receives.withdraw().is_some() {}
        self.completer.cq.purge(self.completer.number);
        if let Some(send) = &self.send {
            send.completer.cq.purge(send.completer.number);
        }
    }
}

/// Returns the RC queue pair in RESET that stands behind a raw queue.
pub(super) fn base(pd: &Pd, cq: [&Cq; 2], cookie: u64) -> Result<Qp, VerbsError> {
    let [send_cq, recv_cq] = cq.map(Clone::clone);
    let (ty, srq, cap, sq_sig_all) = (QpType::Rc, None, QpCap::default(), false);
    pd.create_qp(&QpInitAttr { ty, send_cq, recv_cq, srq, cap, sq_sig_all, cookie })
}
