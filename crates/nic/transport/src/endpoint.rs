//! State shared by the requester and the responder of one queue pair: identity, attributes, outgoing events,
//! counters.

use wire::{Operation, QKey, Qpn, Reth};

use crate::attr::{QpAttr, QpConfig, QpType};
use crate::cause::Cause;
use crate::cc::Congestion;
use crate::completion_counts::{CompletionCounts, CountedOp};
use crate::counters::QpCounters;
use crate::event::Events;
use crate::memory::PdId;
use crate::time::Instant;
use crate::trust::Trust;
use crate::wc::{Wc, WcOpcode};
use crate::wc_status::WcStatus;
use crate::wr::UdDest;

/// A request or datagram of a peer that this side refused; kept for observers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// A datagram with another Q_Key; its sender.
    QKey(QKey, Qpn),
    /// A datagram that does not fit in the next receive.
    TooLong {
        /// Bytes that it needs, with its GRH area.
        needs: usize,
        /// Bytes of the receive.
        room: u64,
        /// Its sender.
        sender: Qpn,
    },
    /// A datagram for which no receive was posted; kept if nothing else was refused before.
    NoReceive(Qpn),
    /// A request for memory, where, and why.
    Request(Operation, Reth, Cause),
}

/// The part of a queue pair that both halves use.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) qpn: Qpn,
    pub(crate) ty: QpType,
    pub(crate) pd: PdId,
    pub(crate) sq_sig_all: bool,
    pub(crate) srq: bool,
    pub(crate) attr: QpAttr,
    /// Payload bytes per packet: the path MTU, or for datagrams the MTU of the port.
    pub(crate) mtu: usize,
    /// See [`QpConfig::equal_writes`].
    pub(crate) equal_writes: bool,
    /// Destination of the last datagram sent.
    pub(crate) datagram_dest: UdDest,
    pub(crate) congestion: Congestion,
    pub(crate) trust: Trust,
    pub(crate) events: Events,
    pub(crate) counters: QpCounters,
    /// The last request or datagram of a peer that was refused.
    pub(crate) refused: Option<Refused>,
    /// Present while a completion counter is attached.
    pub(crate) completion_counts: Option<Box<CompletionCounts>>,
}

/// Receive completions that the owner may leave unpolled on a queue pair with a shared receive queue; beyond
/// that it is not ready.
const SRQ_EVENTS: u32 = 1024;

impl Endpoint {
    pub(crate) fn new(config: &QpConfig) -> Self {
        let shared = config.srq || config.ty == QpType::XrcTgt;
        let recv = if shared { SRQ_EVENTS } else { config.cap.max_recv_wr };
        Self {
            qpn: config.qpn,
            ty: config.ty,
            pd: config.pd,
            sq_sig_all: config.sq_sig_all,
            srq: config.srq,
            attr: QpAttr { cap: config.cap, path_mtu: config.max_path_mtu, ..QpAttr::default() },
            mtu: config.max_path_mtu.bytes(),
            equal_writes: config.equal_writes,
            datagram_dest: UdDest::default(),
            congestion: Congestion::default(),
            trust: Trust::default(),
            events: Events::new(config.cap.max_send_wr, recv, shared),
            counters: QpCounters::default(),
            refused: None,
            completion_counts: None,
        }
    }

    /// Sets the rate limit in kbit/s; 0 for no limit.
    pub(crate) fn set_rate_limit(&mut self, rate_limit_kbps: u32) {
        self.attr.rate_limit = rate_limit_kbps;
        self.congestion.set_limit(rate_limit_kbps);
    }

    /// Counts a packet with a PSN that the peer cannot send; `weight` is the number of guesses that it counts
    /// as.
    #[cold]
    pub(crate) fn on_guess(&mut self, now: Instant, weight: u32) {
        self.counters.guessed_psn += 1;
        self.counters.distrusted += u64::from(self.trust.on_guess(now, weight));
    }

    /// Completes a receive work request with an error; that counts as solicited.
    pub(crate) fn fail_recv(&mut self, srqn: Option<u32>, wr_id: u64, cause: Cause) {
        let wc = Wc { wr_id, opcode: WcOpcode::Recv, qp_num: self.qpn.value(), ..Wc::default() };
        self.complete_recv(srqn, wc.with_result(Err(cause)), true);
    }

    /// Completes a receive work request.
    #[inline]
    pub(crate) fn complete_recv(&mut self, srqn: Option<u32>, wc: Wc, solicited: bool) {
        self.count_completion(Some(CountedOp::Recv), u64::from(wc.byte_len), wc.status);
        self.events.push_recv(srqn, wc, solicited);
    }

    /// Counts a completed operation for the completion counters; `None` is of a kind that they do not count.
    #[inline]
    pub(crate) fn count_completion(&mut self, op: Option<CountedOp>, bytes: u64, status: WcStatus) {
        if let (Some(counts), Some(op)) = (&mut self.completion_counts, op) {
            counts.add(op, bytes, status);
        }
    }
}
