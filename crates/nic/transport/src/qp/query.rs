//! What a queue pair reports about itself.

use wire::{Psn, Qpn};

use super::Qp;
use crate::attr::{QpAttr, QpState, QpType};
use crate::counters::QpCounters;
use crate::emit::psn_of;
use crate::endpoint::Refused;
use crate::memory::PdId;
use crate::time::Instant;
use crate::wc::WcOpcode;
use crate::wr::AddressVector;

/// The PSNs that a connection believes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PsnWindow {
    /// Of the request that the responder expects.
    pub expected: Psn,
    /// Of the oldest unacknowledged request.
    pub oldest: Psn,
    /// One past the youngest request that was sent.
    pub next: Psn,
}

/// A send work request that was posted, for a trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostedSend {
    /// The application's number.
    pub wr_id: u64,
    /// Opcode of its completion.
    pub opcode: WcOpcode,
    /// Place in the send queue: counts work requests, wrapping.
    pub index: u32,
    /// Number of its first packet. Packets are numbered from `sq_psn` on without wrapping.
    pub first: u64,
    /// One past the number of its last packet. A READ counts the packets of its response, a local operation
    /// none.
    pub end: u64,
    /// Bytes of the message.
    pub length: u32,
    /// Whether it makes a completion on success.
    pub is_signaled: bool,
}

/// How far a queue pair has got, for a trace. Packets are numbered as in [`PostedSend`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress {
    /// The work request that completes next.
    pub completes_next: u32,
    /// The oldest unacknowledged packet.
    pub acknowledged: u64,
    /// The packet that leaves next.
    pub leaves_next: u64,
    /// The request packet of the peer that is executed next.
    pub executes_next: u64,
}

impl Qp {
    /// The last request or datagram of a peer that was refused.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        self.ep.refused
    }

    /// The work request that was posted last, if it has not completed.
    #[must_use]
    pub fn last_posted(&self) -> Option<PostedSend> {
        let (index, wqe) = self.requester.last_posted()?;
        Some(PostedSend {
            wr_id: wqe.wr_id,
            opcode: wqe.op.wc_opcode(),
            index,
            first: wqe.first,
            end: wqe.end,
            length: wqe.length,
            is_signaled: wqe.is_signaled(&self.ep),
        })
    }

    /// How far the queue pair has got.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            completes_next: self.requester.completes_next(),
            acknowledged: self.requester.in_flight_range().0,
            leaves_next: self.requester.cursor().1,
            executes_next: self.responder.expected(),
        }
    }

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

    /// The packets that come next in either direction, for a simulation that judges forged ones.
    #[must_use]
    pub fn psn_window(&self) -> PsnWindow {
        let (oldest, next) = self.requester.in_flight_range();
        PsnWindow { expected: psn_of(self.responder.expected()), oldest: psn_of(oldest), next: psn_of(next) }
    }

    /// Whether the peer may still acknowledge a request packet with this PSN.
    #[must_use]
    pub fn is_in_flight(&self, psn: Psn) -> bool {
        let (oldest, next) = self.requester.in_flight_range();
        let distance = u64::try_from(psn.distance_from(psn_of(oldest)));
        self.ep.ty.is_reliable() && distance.is_ok_and(|distance| distance < next - oldest)
    }

    /// Probes and timeouts of the requester since the peer has acknowledged something.
    #[must_use]
    pub fn unanswered_probes(&self) -> u8 {
        self.requester.unanswered_probes()
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

    /// [`Backlog::in_flight_packets`](super::Backlog::in_flight_packets).
    #[must_use]
    #[inline]
    pub fn packets_in_flight(&self) -> usize {
        self.requester.in_flight() as usize
    }

    /// Whether every packet that was sent is acknowledged.
    #[must_use]
    #[inline]
    pub fn is_send_idle(&self) -> bool {
        self.requester.is_idle()
    }
}
