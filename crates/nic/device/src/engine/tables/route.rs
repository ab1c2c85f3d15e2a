//! What follows an input to a queue pair: completions go to their CQs, events to the application, the timer
//! and the window of the flow are updated.

use transport::{AsyncEventKind, Instant, QpAttr, QpAttrMask, QpEvent, QpState, WcStatus};

use super::{QpEntry, Tables};
use crate::cq::Adding;
use crate::events::{AsyncElement, AsyncEvent};
use crate::qp_numbers::QpIndex;

impl Tables {
    /// Follows an input to a queue pair (packets, a timeout, a state change), and lists it if it has packets
    /// to send.
    pub(crate) fn update_after_input(&mut self, now: Instant, index: QpIndex) {
        if self.follow(now, index) {
            self.queue.list(index);
        }
    }

    /// [Routes](Self::route) what a queue pair has done, then arms its timer and updates its flow. True if it
    /// has packets to send.
    #[inline]
    pub(in crate::engine) fn follow(&mut self, now: Instant, index: QpIndex) -> bool {
        let has_event = |entry: &QpEntry| entry.qp.has_event();
        if self.qp(index).is_some_and(has_event) {
            self.route(now, index);
        }
        let Self { qps, queue, timers, .. } = self;
        let Some(entry) = qps.get_mut(index as usize).and_then(Option::as_deref_mut) else { return false };
        if let Some(counters) = &entry.counters {
            counters.update(&mut entry.qp);
        }
        if let Some(at) = entry.qp.poll_timeout() {
            timers.arm(index, at);
        }
        queue.set_in_flight(&mut entry.share, entry.qp.packets_in_flight());
        entry.qp.wants_transmit()
    }

    /// Moves the completions of a queue pair to their CQs, with one lock for consecutive ones, and its events
    /// to the application. The events do not wait in the outbox: as soon as the engine is unlocked, the
    /// application may destroy the queue pair.
    fn route(&mut self, now: Instant, index: QpIndex) {
        let slot = self.slot;
        let Self { qps, srqs, mrs, observer, outbox, .. } = self;
        let Some(entry) = qps.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        observer.work_done(entry, mrs);
        let mut adding: Option<Adding<'_>> = None;
        while let Some(event) = entry.qp.poll_event() {
            observer.look(&event, mrs);
            let (cq, wc, solicited) = match event {
                QpEvent::SendWc(wc) => (&*entry.send_cq, wc, wc.status != WcStatus::Success),
                QpEvent::RecvWc { srqn: None, wc, solicited } => (&*entry.recv_cq, wc, solicited),
                QpEvent::RecvWc { srqn: Some(srqn), wc, solicited } => {
                    let xrc = srqs.by_number(slot, srqn).and_then(|srq| srq.xrc.as_ref());
                    // The XRC shared receive queue was destroyed meanwhile, and its CQ with it.
                    let Some(xrc) = xrc else { continue };
                    (&*xrc.cq, wc, solicited)
                }
                QpEvent::Async(kind) => {
                    // Releases the CQ's lock first: an application that gets the event must find all
                    // completions that precede it.
                    adding = None;
                    if kind == AsyncEventKind::CommEst {
                        outbox.established.push(entry.qp.qpn());
                    }
                    let srq = entry.srqs.own.and_then(|index| srqs.get(index));
                    let element = match (kind, srq) {
                        (AsyncEventKind::SrqLimitReached, Some(srq)) => AsyncElement::Srq(srq.cookie),
                        _ => AsyncElement::Qp(entry.cookie),
                    };
                    entry.events.push(AsyncEvent { kind, element });
                    continue;
                }
                QpEvent::XrcLimitReached(srqn) => {
                    adding = None;
                    if let Some(srq) = srqs.by_number(slot, srqn) {
                        let element = AsyncElement::Srq(srq.cookie);
                        entry.events.push(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, element });
                    }
                    continue;
                }
            };
            adding = adding.filter(|adding| adding.is_for(cq));
            if !adding.get_or_insert_with(|| cq.adding(now)).push(wc, solicited) {
                adding = None;
                // The queue pair fails (IBA 11.6.3.2, 11.6.3.4).
                for (kind, element) in [
                    (AsyncEventKind::CqErr, AsyncElement::Cq(cq.cookie())),
                    (AsyncEventKind::QpFatal, AsyncElement::Qp(entry.cookie)),
                ] {
                    entry.events.push(AsyncEvent { kind, element });
                }
                let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
                // Any state but RESET may go to ERR, and a queue pair in RESET completes nothing.
                let _done = entry.qp.modify(now, &error, QpAttrMask::STATE);
            }
        }
    }
}
