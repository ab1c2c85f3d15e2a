//! Why a work request completed in error: the number in `vendor_err`, and what it means for people.
//!
//! A status as `IBV_WC_LOC_PROT_ERR` has many causes. Each cause has one status and one number, which does
//! not change between versions.
//!
//! ```
//! use roxie_transport::{Cause, WcStatus};
//!
//! let cause = Cause::from_vendor_err(0x51).expect("a cause of this device");
//! assert_eq!(cause, Cause::NoAnswer);
//! assert_eq!(cause.status(), WcStatus::RetryExcErr);
//! assert!(cause.meaning().contains("retry_cnt"));
//! ```

use wire::NakCode;

use crate::memory::AccessFault;
use crate::wc_status::WcStatus;

/// Declares the causes, each with number, status, meaning and remedy.
macro_rules! causes {
    ($($name:ident = $number:literal, $status:ident, $meaning:literal, $remedy:literal;)*) => {
        /// Why a work request completed in error.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
        pub enum Cause {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl Cause {
            /// Every cause, by its number.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The status of the completion.
            #[must_use]
            pub const fn status(self) -> WcStatus {
                match self { $(Self::$name => WcStatus::$status,)* }
            }

            /// What happened, as one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }

            /// What to look at or to change, as one sentence.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)* }
            }
        }
    };
}

causes! {
    SendKey = 0x11, LocProtErr,
        "An L_Key of the send work request names no memory region.",
        "Use mr->lkey of a region that is still registered; ibv_dereg_mr must wait for the completion.";
    SendPd = 0x12, LocProtErr,
        "An L_Key of the send work request belongs to another protection domain than the queue pair.",
        "Register the memory with the protection domain of the queue pair.";
    SendBounds = 0x13, LocProtErr,
        "An element of the send work request reaches beyond its memory region.",
        "Compare addr and length of each element with the address and length given to ibv_reg_mr.";
    SendRights = 0x14, LocProtErr,
        "The memory region for the result of a READ or atomic was registered without local write access.",
        "Register it with IBV_ACCESS_LOCAL_WRITE.";
    SendUnmapped = 0x15, LocProtErr,
        "The memory of a send work request is no longer mapped.",
        "Keep the memory until the completion, and deregister the region before munmap or free.";
    RecvKey = 0x21, LocProtErr,
        "An L_Key of the receive work request names no memory region.",
        "Use mr->lkey of a region that is still registered; ibv_dereg_mr must wait for the completion.";
    RecvPd = 0x22, LocProtErr,
        "An L_Key of the receive work request belongs to another protection domain than its queue.",
        "Register the memory with the protection domain of the queue pair or shared receive queue.";
    RecvBounds = 0x23, LocProtErr,
        "An element of the receive work request reaches beyond its memory region.",
        "Compare addr and length of each element with the address and length given to ibv_reg_mr.";
    RecvRights = 0x24, LocProtErr,
        "The memory region of the receive was registered without local write access.",
        "Register it with IBV_ACCESS_LOCAL_WRITE.";
    RecvUnmapped = 0x25, LocProtErr,
        "The memory of a receive work request is no longer mapped.",
        "Keep the memory until the completion, and deregister the region before munmap or free.";
    MessageLength = 0x31, LocLenErr,
        "The message is longer than the 2 GiB that one work request can carry.",
        "Split it; max_msg_sz of ibv_query_port is the limit.";
    NoReads = 0x32, LocQpOpErr,
        "A READ, atomic or FLUSH was posted to a queue pair whose max_rd_atomic is 0.",
        "Set max_rd_atomic with the transition to RTS (rdma_cm: initiator_depth), to at most the peer's \
         max_dest_rd_atomic.";
    NotPossible = 0x33, LocQpOpErr,
        "The work request has no destination, or its operation does not exist on this service.",
        "Compare the opcode with the table of ibv_post_send(3); set wr.ud for datagrams.";
    InvalidateRefused = 0x34, LocQpOpErr,
        "IBV_WR_LOCAL_INV names a key that this queue pair may not invalidate.",
        "Only memory windows of type 2 and fast-registered regions of the same protection domain can be \
         invalidated.";
    BindRefused = 0x35, MwBindErr,
        "The memory window could not be bound.",
        "The region needs IBV_ACCESS_MW_BIND (and LOCAL_WRITE for remote writes), the range must lie inside \
         it, and window, region and queue pair share one protection domain.";
    RegisterRefused = 0x36, LocQpOpErr,
        "The fast registration was refused.",
        "The key must be that of a free region of the same protection domain, and its pages must be set.";
    FrameLength = 0x37, LocLenErr,
        "The frame of a raw packet queue pair is longer than the port takes.",
        "Compare it with the MTU of the netdev.";
    RemoteInvalidRequest = 0x41, RemInvReqErr,
        "The peer refused the request (NAK invalid request).",
        "Usual reasons: its receive is shorter than the message, its qp_access_flags do not permit the \
         operation, an atomic is not aligned to 8 bytes, or max_rd_atomic exceeds its max_dest_rd_atomic.";
    RemoteAccess = 0x42, RemAccessErr,
        "The peer refused access to its memory (NAK remote access error).",
        "Check rkey, address, length and the access flags of the peer's region, and that it is still \
         registered.";
    RemoteOperation = 0x43, RemOpErr,
        "The peer could not complete the request (NAK remote operational error).",
        "The memory of its receive work request cannot be written; look at the peer's completions.";
    RemoteReadRequest = 0x44, RemInvRdReqErr,
        "The peer refused the READ request (NAK invalid RD request).",
        "Reliable datagrams only; the peer sent a NAK that this service does not have.";
    NoAnswer = 0x51, RetryExcErr,
        "The peer answered none of the transmissions that timeout and retry_cnt allow.",
        "The peer exited, its queue pair is not in RTR or in ERR, GID, QPN or PSN do not match, or UDP port \
         4791 is blocked: `roxie doctor`, or a capture on both sides shows which.";
    NotReady = 0x52, RnrRetryExcErr,
        "The peer had no receive posted, also after rnr_retry attempts.",
        "Post receives before the peer sends; rnr_retry 7 waits without limit.";
    ResponseKind = 0x61, BadRespErr,
        "The peer's response does not fit the request.",
        "Packets of another connection with the same QPN, or a faulty peer: a capture shows the response.";
    ResponseLength = 0x62, LocLenErr,
        "A READ response has another length than the request.",
        "Both ends need the same path MTU.";
    RecvTooShort = 0x71, LocLenErr,
        "The message is longer than the receive work request.",
        "Post receives as long as the longest message.";
    PeerOpcode = 0x72, LocQpOpErr,
        "The peer's request has an opcode that does not belong there.",
        "Both ends need the same service (RC, UC, XRC); else the peer is faulty.";
    PeerPermission = 0x73, LocQpOpErr,
        "The peer requested an operation that qp_access_flags do not permit.",
        "Set qp_access_flags with the transition to INIT (or RTR).";
    PeerLength = 0x74, LocQpOpErr,
        "The peer's packet has a length that its opcode does not permit.",
        "Both ends need the same path MTU.";
    PeerReads = 0x75, LocQpOpErr,
        "The peer has more READs and atomics outstanding than max_dest_rd_atomic.",
        "Give the peer a max_rd_atomic of at most this side's max_dest_rd_atomic.";
    PeerAlignment = 0x76, LocQpOpErr,
        "The peer's atomic is not aligned to 8 bytes.",
        "Atomics need addresses that are multiples of 8.";
    PeerAccess = 0x77, LocAccessErr,
        "The peer's WRITE, READ or atomic named memory that it may not access.",
        "Check rkey, address, length and access flags that this side has told the peer.";
    PeerInvalidate = 0x78, RemInvReqErr,
        "The peer's SEND with Invalidate names a key that it may not invalidate.",
        "Send it the key of a memory window of type 2 or a fast-registered region of this queue pair.";
    PeerSrq = 0x79, LocQpOpErr,
        "The peer named an XRC shared receive queue that does not exist or is of another XRC domain.",
        "Send the peer the number that ibv_get_srq_num returns.";
    PostedInError = 0x81, WrFlushErr,
        "The work request was posted to a queue pair in the error state.",
        "Look at the first completion that failed, or at the asynchronous events.";
    FlushedAfterFailure = 0x82, WrFlushErr,
        "An earlier work request of the same queue pair failed.",
        "Look at the first completion of the queue pair that is not IBV_WC_WR_FLUSH_ERR.";
    FlushedByPeer = 0x83, WrFlushErr,
        "A request of the peer broke a rule and ended the connection.",
        "Look at the receive completions and asynchronous events of the queue pair.";
    FlushedByApplication = 0x84, WrFlushErr,
        "The queue pair was moved to the error state, by ibv_modify_qp or because the connection ended.",
        "Expected after rdma_disconnect or when the peer has disconnected; else look for the caller.";
}

impl Cause {
    /// The number in `vendor_err` of the completion.
    #[must_use]
    pub const fn vendor_err(self) -> u32 {
        self as u32
    }

    /// The cause with this number; `None` for 0 and for numbers that no cause has.
    #[must_use]
    pub fn from_vendor_err(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|cause| cause.vendor_err() == number)
    }

    /// The cause when memory of a send work request was refused.
    #[must_use]
    pub fn of_send(fault: AccessFault) -> Self {
        match fault {
            AccessFault::BadKey => Self::SendKey,
            AccessFault::WrongPd => Self::SendPd,
            AccessFault::OutOfBounds | AccessFault::Misaligned => Self::SendBounds,
            AccessFault::Permission => Self::SendRights,
            AccessFault::Unmapped => Self::SendUnmapped,
        }
    }

    /// The cause when memory of a receive work request was refused.
    #[must_use]
    pub fn of_recv(fault: AccessFault) -> Self {
        match fault {
            AccessFault::BadKey => Self::RecvKey,
            AccessFault::WrongPd => Self::RecvPd,
            AccessFault::OutOfBounds | AccessFault::Misaligned => Self::RecvBounds,
            AccessFault::Permission => Self::RecvRights,
            AccessFault::Unmapped => Self::RecvUnmapped,
        }
    }

    /// The cause when a send work request was NAKed for good (IBA 9.9.2); `None` for a sequence NAK.
    pub(crate) fn of_nak(code: NakCode) -> Option<Self> {
        match code {
            NakCode::PsnSequenceError => None,
            NakCode::InvalidRequest => Some(Self::RemoteInvalidRequest),
            NakCode::RemoteAccessError => Some(Self::RemoteAccess),
            NakCode::RemoteOperationalError => Some(Self::RemoteOperation),
            NakCode::InvalidRdRequest => Some(Self::RemoteReadRequest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_fit_eight_bits_and_lead_back() {
        assert!(Cause::ALL.is_sorted_by_key(|cause| cause.vendor_err()));
        for cause in Cause::ALL {
            assert_eq!(Cause::from_vendor_err(cause.vendor_err()), Some(*cause));
            assert_ne!(cause.status(), WcStatus::Success);
        }
        assert_eq!(Cause::from_vendor_err(0), None);
        assert_eq!(Cause::from_vendor_err(0x1_0051), None);
    }

    #[test]
    fn texts_are_whole_sentences() {
        for cause in Cause::ALL {
            for text in [cause.meaning(), cause.remedy()] {
                assert!(text.ends_with('.') && !text.contains("  "), "{cause:?}: {text}");
            }
        }
    }
}
