//! Congestion control: how fast a queue pair may send, and how it reports marked packets to the peer.
//!
//! A switch that is congested marks packets that are ECN-capable (RFC 3168). Their receiver, the notification
//! point ([`Notifier`]), tells the sender by a CNP (Annex A17.9); the sender, the reaction point
//! ([`ReactionPoint`]), slows down. The [`Pacer`] turns that rate, or a limit of the application, into a time
//! for each packet. A queue pair without limit that has not met congestion pays one comparison per packet.

mod dcqcn;
mod notifier;
mod pacer;

use dcqcn::Dcqcn;
use notifier::Notifier;
use pacer::Pacer;

use crate::time::Instant;

/// The algorithm that turns CNPs into a rate. It has no timers: each call catches up with the time since the
/// last one. Time never goes back.
pub(crate) trait ReactionPoint {
    /// A CNP arrived. Returns whether it counts; a CNP that follows too soon reports the same congestion.
    fn on_cnp(&mut self, now: Instant) -> bool;

    /// This many bytes were sent while a rate was in force.
    fn on_sent(&mut self, bytes: u64);

    /// The rate in bits per second; `None` for no limit.
    fn rate_bps(&mut self, now: Instant) -> Option<u64>;
}

/// Congestion state and rate limit of one queue pair; allocated when the first is needed, because most never
/// need any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Congestion(Option<Box<State>>);

#[derive(Clone, Debug, Default)]
struct State {
    pacer: Pacer<Dcqcn>,
    notifier: Notifier,
    /// Packets sent until the last CNP.
    sent_at_cnp: u64,
    /// The limit that RESET restores, in kbit/s.
    initial_limit_kbps: u32,
}

impl Congestion {
    /// A packet of the peer arrived marked.
    pub(crate) fn on_marked(&mut self, now: Instant) {
        self.0.get_or_insert_default().notifier.on_marked(now);
    }

    /// A CNP arrived, after `sent_pkts` packets were sent. Returns whether it counts. If nothing is in flight
    /// and nothing was sent since the last one, there is nothing that a switch could have marked: the CNP is
    /// late or forged.
    pub(crate) fn on_cnp(&mut self, now: Instant, is_in_flight: bool, sent_pkts: u64) -> bool {
        let state = self.0.get_or_insert_default();
        let is_answer = is_in_flight || state.sent_at_cnp != sent_pkts;
        state.sent_at_cnp = sent_pkts;
        is_answer && state.pacer.on_cnp(now)
    }

    /// Sets the rate limit in kbit/s; 0 for no limit.
    pub(crate) fn set_limit(&mut self, kbps: u32) {
        if kbps > 0 || self.0.is_some() {
            self.0.get_or_insert_default().pacer.set_limit(u64::from(kbps) * 1000);
        }
    }

    /// Sets the rate limit in kbit/s that [`reset`](Self::reset) restores.
    pub(crate) fn set_initial_limit(&mut self, kbps: u32) {
        self.set_limit(kbps);
        if let Some(state) = &mut self.0 {
            state.initial_limit_kbps = kbps;
        }
    }

    /// Returns to the initial state. Returns the limit that is then in force, in kbit/s.
    pub(crate) fn reset(&mut self) -> u32 {
        let initial = self.0.take().map_or(0, |state| state.initial_limit_kbps);
        self.set_initial_limit(initial);
        initial
    }

    /// Drops a CNP that is due.
    pub(crate) fn silence(&mut self) {
        if let Some(state) = &mut self.0 {
            state.notifier = Notifier::default();
        }
    }

    /// Whether a CNP is due.
    #[inline]
    pub(crate) fn owes_cnp(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.notifier.is_due())
    }

    /// Takes the CNP that is due; the caller sends it. Returns whether there was one.
    #[inline]
    pub(crate) fn take_cnp(&mut self) -> bool {
        self.owes_cnp() && self.0.as_mut().is_some_and(|state| state.notifier.take())
    }

    /// The pacer, if a rate is in force.
    #[inline]
    pub(crate) fn pacer(&mut self) -> Option<&mut Pacer<Dcqcn>> {
        self.0.as_mut().map(|state| &mut state.pacer).filter(|pacer| pacer.is_active())
    }

    /// Whether a rate is in force.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.pacer.is_active())
    }

    /// Whether a pause follows each packet. The window of the flow is shared with other queue pairs: packets
    /// that ask for no acknowledgement would fill it meanwhile, and the path would not be measured.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.pacer.is_slow())
    }

    /// Whether a packet is being held back.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.pacer.is_holding())
    }

    /// When the packet that is being held back may be sent.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.as_ref()?.pacer.deadline()
    }
}

#[cfg(test)]
mod tests;
