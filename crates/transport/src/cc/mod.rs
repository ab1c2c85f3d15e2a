//! Congestion control: how fast a queue pair may send, and what it tells peers whose packets arrive marked.
//!
//! A switch that is congested marks packets that are ECN-capable (RFC 3168). Their receiver, the notification point
//! ([`Notifier`]), tells the sender by a CNP (Annex A17.9); the sender, the reaction point ([`ReactionPoint`]), slows down.
//! The [`Pacer`] makes that rate, or one that the program has set, into a time for each packet. A queue pair that was never
//! told of congestion and has no limit pays one comparison per packet.

mod dcqcn;
mod notifier;
mod pacer;

use dcqcn::Dcqcn;
use notifier::Notifier;
use pacer::Pacer;

use crate::time::Instant;

/// The algorithm that turns notifications into a rate. Time only moves on; it has no timers of its own, but makes up for
/// what has passed whenever it is asked.
pub(crate) trait ReactionPoint {
    /// A CNP arrived. Returns whether it counts; one that follows too soon is about the same queue.
    fn on_cnp(&mut self, now: Instant) -> bool;

    /// So many bytes were sent while there was a rate.
    fn on_sent(&mut self, bytes: u64);

    /// The rate in bits per second; `None`: as fast as it goes.
    fn rate_bps(&mut self, now: Instant) -> Option<u64>;
}

/// What congestion and limits mean for one queue pair; made when the first comes, because most never meet any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Congestion(Option<Box<State>>);

#[derive(Clone, Debug, Default)]
struct State {
    pacer: Pacer<Dcqcn>,
    notifier: Notifier,
    /// The limit that RESET goes back to, in kbit/s.
    initial_limit_kbps: u32,
}

impl Congestion {
    /// A packet of the peer arrived marked.
    pub(crate) fn on_marked(&mut self, now: Instant) {
        self.0.get_or_insert_default().notifier.on_marked(now);
    }

    /// A CNP arrived. Returns whether it counts.
    pub(crate) fn on_cnp(&mut self, now: Instant) -> bool {
        self.0.get_or_insert_default().pacer.on_cnp(now)
    }

    /// Never faster than this; 0 for no limit.
    pub(crate) fn set_limit(&mut self, kbps: u32) {
        if kbps > 0 || self.0.is_some() {
            self.0.get_or_insert_default().pacer.set_limit(u64::from(kbps) * 1000);
        }
    }

    /// A limit that [`reset`](Self::reset) does not forget.
    pub(crate) fn set_initial_limit(&mut self, kbps: u32) {
        self.set_limit(kbps);
        if let Some(state) = &mut self.0 {
            state.initial_limit_kbps = kbps;
        }
    }

    /// As in the beginning. Returns the limit that there is then, in kbit/s.
    pub(crate) fn reset(&mut self) -> u32 {
        let initial = self.0.take().map_or(0, |state| state.initial_limit_kbps);
        self.set_initial_limit(initial);
        initial
    }

    /// The peer is owed no CNP any more.
    pub(crate) fn silence(&mut self) {
        if let Some(state) = &mut self.0 {
            state.notifier = Notifier::default();
        }
    }

    /// Whether a CNP is to be sent.
    #[inline]
    pub(crate) fn owes_cnp(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.notifier.is_due())
    }

    /// Whether a CNP is to be sent, which is sent then.
    #[inline]
    pub(crate) fn take_cnp(&mut self) -> bool {
        self.owes_cnp() && self.0.as_mut().is_some_and(|state| state.notifier.take())
    }

    /// What keeps the rate, if there is one.
    #[inline]
    pub(crate) fn pacer(&mut self) -> Option<&mut Pacer<Dcqcn>> {
        self.0.as_mut().map(|state| &mut state.pacer).filter(|pacer| pacer.is_active())
    }

    /// Whether there is a rate to be kept.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.pacer.is_active())
    }

    /// Whether a packet is being held back.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.pacer.is_holding())
    }

    /// When the packet that is held back may be sent.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.as_ref()?.pacer.deadline()
    }
}

#[cfg(test)]
mod tests;
