//! What a queue pair reports about itself.

use wire::Qpn;

use super::Qp;
use crate::attr::{QpAttr, QpState, QpType};
use crate::counters::QpCounters;
use crate::memory::PdId;
use crate::time::Instant;
use crate::wr::AddressVector;

impl Qp {
    /// Whether [`Qp::poll_event`] has something.
    #[must_use]
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.ep.events.is_empty()
    }

    /// The attributes that `modify` set, and the state.
    #[must_use]
    pub fn attr(&self) -> QpAttr {
        QpAttr { cur_state: self.ep.attr.state, ..self.ep.attr.clone() }
    }

    /// Its state.
    #[must_use]
    #[inline]
    pub fn state(&self) -> QpState {
        self.ep.attr.state
    }

    /// Its number.
    #[must_use]
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.ep.qpn
    }

    /// Its service.
    #[must_use]
    #[inline]
    pub fn ty(&self) -> QpType {
        self.ep.ty
    }

    /// Its protection domain.
    #[must_use]
    #[inline]
    pub fn pd(&self) -> PdId {
        self.ep.pd
    }

    /// The peer's number.
    #[must_use]
    #[inline]
    pub fn dest_qpn(&self) -> Qpn {
        self.ep.attr.dest_qp
    }

    /// The path to the peer.
    #[must_use]
    #[inline]
    pub fn av(&self) -> &AddressVector {
        &self.ep.attr.av
    }

    /// Smoothed time from a packet to its acknowledgement or READ response; `None` before it was measured.
    #[must_use]
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.requester.round_trip_ns()
    }

    /// The rate that congestion control or a limit sets, in bits per second on the wire; `None` for no limit.
    #[must_use]
    pub fn paced_bps(&mut self, now: Instant) -> Option<u64> {
        self.ep.congestion.pacer()?.rate_bps(now)
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &QpCounters {
        &self.ep.counters
    }

    /// [`Backlog::is_paced`](super::Backlog::is_paced).
    #[must_use]
    #[inline]
    pub fn is_paced(&self) -> bool {
        self.ep.congestion.is_paced()
    }

    /// [`Backlog::owes_responses`](super::Backlog::owes_responses).
    #[must_use]
    #[inline]
    pub fn owes_answers(&self) -> bool {
        self.backlog().owes_responses
    }

    /// [`Backlog::in_flight_packets`](super::Backlog::in_flight_packets).
    #[must_use]
    #[inline]
    pub fn packets_in_flight(&self) -> usize {
        self.requester.in_flight() as usize
    }

    /// [`Backlog::isolated_packets`](super::Backlog::isolated_packets).
    #[must_use]
    #[inline]
    pub fn lone_packets(&self) -> usize {
        self.backlog().isolated_packets
    }

    /// [`Backlog::pending_packets`](super::Backlog::pending_packets).
    #[must_use]
    #[inline]
    pub fn pending_packets(&self) -> usize {
        self.requester.pending_packets() as usize
    }

    /// [`Backlog::pending_bytes`](super::Backlog::pending_bytes).
    #[must_use]
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        self.requester.pending_bytes() as usize
    }

    /// [`Backlog::unsignaled_run`](super::Backlog::unsignaled_run).
    #[must_use]
    #[inline]
    pub fn ended_run(&self) -> u32 {
        self.backlog().unsignaled_run
    }

    /// [`Backlog::last_posted_bytes`](super::Backlog::last_posted_bytes).
    #[must_use]
    #[inline]
    pub fn last_posted_bytes(&self) -> usize {
        self.backlog().last_posted_bytes
    }

    /// [`Backlog::only_small_messages`](super::Backlog::only_small_messages).
    #[must_use]
    #[inline]
    pub fn has_only_small_messages(&self) -> bool {
        self.backlog().only_small_messages
    }

    /// [`Backlog::path_mtu_bytes`](super::Backlog::path_mtu_bytes).
    #[must_use]
    #[inline]
    pub fn path_mtu_bytes(&self) -> usize {
        self.ep.mtu
    }

    /// [`Backlog::window_room_packets`](super::Backlog::window_room_packets).
    #[must_use]
    #[inline]
    pub fn window_room(&self) -> usize {
        self.backlog().window_room_packets
    }

    /// [`Backlog::is_ack_expected`](super::Backlog::is_ack_expected).
    #[must_use]
    #[inline]
    pub fn is_answer_owed(&self) -> bool {
        self.requester.is_ack_expected()
    }

    /// Whether every packet that was sent is acknowledged.
    #[must_use]
    #[inline]
    pub fn is_send_idle(&self) -> bool {
        self.requester.is_idle()
    }

    /// Number of the oldest unacknowledged packet.
    #[cfg(test)]
    pub(crate) fn oldest_unacknowledged(&self) -> u64 {
        self.requester.una()
    }
}
