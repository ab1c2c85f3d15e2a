//! Queue pair attributes and their masks, with the values of the verbs interface.

use core::fmt;

use bitflags::bitflags;
use wire::{Opcode, Psn, QKey, Qpn, Service};

use crate::memory::{Access, PdId};
use crate::wr::AddressVector;

/// The most READs and atomics a queue pair can have outstanding, in either direction.
pub const MAX_RD_ATOMIC: u8 = 128;
/// The most scatter/gather elements of a work request.
pub const MAX_SGE: usize = 32;
/// The most work requests of a queue.
pub const MAX_QP_WR: u32 = 32768;
/// The most bytes that can be sent inline.
pub const MAX_INLINE_DATA: u32 = 1024;
/// The longest message, 2^31 bytes (IBA C9-94).
pub const MAX_MSG_SZ: u64 = 1 << 31;
/// Length of the longest packet from the BTH to the pad, with room to spare: payload 4096, headers at most
/// 40.
pub const MAX_PACKET: usize = 4096 + 64;

/// Service of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The general service interface: queue pair 1, a UD queue pair with the well-known Q_Key.
    Gsi,
    /// The sending end of an extended reliable connection (IBA Annex A14): RC without the receiving half.
    XrcIni,
    /// The receiving end of an extended reliable connection: RC without the sending half. Every request names
    /// its shared receive queue.
    XrcTgt,
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Gsi => "GSI",
            Self::XrcIni => "XRC_SEND",
            Self::XrcTgt => "XRC_RECV",
        })
    }
}

impl QpType {
    /// Whether messages carry their own destination.
    #[must_use]
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }

    /// Whether requests are acknowledged.
    #[must_use]
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// The service that its packets belong to.
    #[must_use]
    #[inline]
    pub const fn service(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud | Self::Gsi => Service::Ud,
            Self::XrcIni | Self::XrcTgt => Service::Xrc,
        }
    }

    /// The opcode of this connected service for an RC opcode: the top three bits name the service.
    #[inline]
    pub(crate) const fn opcode(self, rc: Opcode) -> Opcode {
        let service = match self {
            Self::Uc => 0x20,
            Self::XrcIni | Self::XrcTgt => 0xa0,
            Self::Rc | Self::Ud | Self::Gsi => 0,
        };
        Opcode(rc.0 | service)
    }
}

/// `ibv_qp_state`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub enum QpState {
    /// Nothing is set.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained, or draining.
    Sqd = 4,
    /// Send queue error (UC, UD).
    Sqe = 5,
    /// Error.
    Err = 6,
}

/// The names of the specification.
impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// Payload bytes per packet; `ibv_mtu`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    #[default]
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl PathMtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// Payload bytes per packet.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        128 << (self as u8)
    }

    /// The MTU with this `ibv_mtu` value.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::M256),
            2 => Some(Self::M512),
            3 => Some(Self::M1024),
            4 => Some(Self::M2048),
            5 => Some(Self::M4096),
            _ => None,
        }
    }
}

/// Sizes of a queue pair; laid out as `ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub struct QpCap {
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Elements of a send work request.
    pub max_send_sge: u32,
    /// Elements of a receive work request.
    pub max_recv_sge: u32,
    /// Bytes that can be sent inline.
    pub max_inline_data: u32,
}

/// What a queue pair is made from.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its service.
    pub ty: QpType,
    /// Its protection domain.
    pub pd: PdId,
    /// Its sizes.
    pub cap: QpCap,
    /// Every send work request is signaled.
    pub sq_sig_all: bool,
    /// Receives come from a shared receive queue, which the owner passes to every call that may need it
    /// ([`SrqTable`](crate::SrqTable)).
    pub srq: bool,
    /// The largest path MTU that the port carries.
    pub max_path_mtu: PathMtu,
    /// A long WRITE without immediate leaves as WRITE Only packets with consecutive addresses instead of
    /// First, Middle and Last (RC, XRC). All packets then have equal length, and a port that sends bursts of
    /// equal packets need not end one at every First. The responder sees the same bytes in its memory and the
    /// same PSNs.
    pub equal_writes: bool,
}

/// The attributes of a queue pair; the RoCE part of `ibv_qp_attr`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs)] // the names are the verbs ones
pub struct QpAttr {
    pub state: QpState,
    pub cur_state: QpState,
    pub path_mtu: PathMtu,
    pub q_key: QKey,
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub dest_qp: Qpn,
    pub access: Access,
    pub cap: QpCap,
    pub av: AddressVector,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// Limit in kbit/s on the wire for what this queue pair sends, READ responses included; 0 for no limit.
    pub rate_limit: u32,
}

bitflags! {
    /// `ibv_qp_attr_mask`: which attributes a call sets.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
    pub struct QpAttrMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `q_key`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path; there is none on RoCE.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration; there is none on RoCE.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`; resizing is not supported.
        const CAP = 1 << 19;
        /// `dest_qp`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mtu_has_its_code_and_no_other_code_is_one() {
        let known: Vec<_> = (0..=u8::MAX).filter_map(PathMtu::from_code).collect();
        assert_eq!(known, PathMtu::ALL);
        assert!(PathMtu::ALL.iter().all(|&mtu| PathMtu::from_code(mtu as u8) == Some(mtu)));
        assert_eq!(PathMtu::ALL.map(PathMtu::bytes), [256, 512, 1024, 2048, 4096]);
    }
}
