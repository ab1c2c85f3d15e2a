//! Rejecting and ending a connection: REJ, DREQ, DREP (IBA 12.6.7, 12.6.10, 12.6.11).

use core::fmt;

use super::Answered;
use super::layout::{Bits, bits, message};
use crate::psn::Qpn;

message! {
    /// ConnectReject (IBA 12.6.7): the sender rejects the connection, with a reason.
    Rej = 0x12
    bits {
        /// The sender's id of the connection; 0 if it has none.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The receiver's id of the connection; 0 if the sender does not know it.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// Which message is rejected.
        message: Answered = [(8, 0, 2)];
        /// Valid bytes of `ari`, at most 72.
        ari_len: u8 = [(9, 0, 7)];
        /// Reason of the reject.
        reason: RejReason = [(10, 0, 16)];
    }
    blocks {
        /// Additional reject information; its meaning depends on the reason.
        ari: [u8; 72] = 12;
        /// Private data of the application; valid for [`RejReason::CONSUMER_DEFINED`].
        private_data: [u8; 148] = 84;
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: ConnectReject LocalCommID={:#010x} RemoteCommID={:#010x} Message={} Reason={}",
            self.local_comm_id, self.remote_comm_id, self.message, self.reason
        )
    }
}

/// Reason of a [`Rej`] (IBA 12.6.7.2).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct RejReason(pub u16);

bits! {
    RejReason: bits => Self(bits as u16), v => u64::from(v.0);
}

macro_rules! reasons {
    ($($code:literal $id:ident: $words:literal;)*) => {
        impl RejReason {
            $(#[doc = concat!($words, ".")] pub const $id: Self = Self($code);)*

            /// Returns the reason as text, or `None` for an unknown code.
            #[must_use]
            pub const fn words(self) -> Option<&'static str> {
                Some(match self.0 {
                    $($code => $words,)*
                    _ => return None,
                })
            }
        }
    };
}

reasons! {
    1 NO_QP: "No QP available";
    2 NO_EEC: "No EEC available";
    3 NO_RESOURCES: "No resources available";
    4 TIMEOUT: "Timeout";
    5 UNSUPPORTED: "Unsupported request";
    6 INVALID_COMM_ID: "Invalid communication ID";
    7 INVALID_COMM_INSTANCE: "Invalid communication instance";
    8 INVALID_SERVICE_ID: "Invalid service ID";
    9 INVALID_TRANSPORT_TYPE: "Invalid transport service type";
    10 STALE_CONNECTION: "Stale connection";
    11 RDC_NOT_EXIST: "RDC does not exist";
    12 INVALID_GID: "Primary remote port GID rejected";
    13 INVALID_LID: "Primary remote port LID rejected";
    14 INVALID_SL: "Invalid primary SL";
    15 INVALID_TRAFFIC_CLASS: "Invalid primary traffic class";
    16 INVALID_HOP_LIMIT: "Invalid primary hop limit";
    17 INVALID_PACKET_RATE: "Invalid primary packet rate";
    18 INVALID_ALT_GID: "Alternate remote port GID rejected";
    19 INVALID_ALT_LID: "Alternate remote port LID rejected";
    20 INVALID_ALT_SL: "Invalid alternate SL";
    21 INVALID_ALT_TRAFFIC_CLASS: "Invalid alternate traffic class";
    22 INVALID_ALT_HOP_LIMIT: "Invalid alternate hop limit";
    23 INVALID_ALT_PACKET_RATE: "Invalid alternate packet rate";
    24 PORT_CM_REDIRECT: "Port and CM redirection";
    25 PORT_REDIRECT: "Port redirection";
    26 INVALID_MTU: "Invalid path MTU";
    27 INSUFFICIENT_RESPONDER_RESOURCES: "Insufficient responder resources";
    28 CONSUMER_DEFINED: "Consumer reject";
    29 INVALID_RNR_RETRY: "RNR retry count reject";
    30 DUPLICATE_LOCAL_COMM_ID: "Duplicate local communication ID";
    31 INVALID_CLASS_VERSION: "Unsupported class version";
    32 INVALID_FLOW_LABEL: "Invalid primary flow label";
    33 INVALID_ALT_FLOW_LABEL: "Invalid alternate flow label";
    35 VENDOR_OPTION_NOT_SUPPORTED: "Vendor option not supported";
}

impl RejReason {
    /// Why a peer usually gives this reason, as a clause for people; `None` where the words say all.
    #[must_use]
    pub const fn usual_cause(self) -> Option<&'static str> {
        Some(match self {
            Self::INVALID_SERVICE_ID => "no program listens on that port",
            Self::CONSUMER_DEFINED => "the listening program rejected it, or ended",
            Self::STALE_CONNECTION => "the peer still has an earlier connection with that queue pair",
            Self::TIMEOUT => "the peer waited too long for an answer",
            Self::INVALID_GID => "the address in the request is not one of the peer",
            Self::INVALID_MTU => "the path MTU is larger than the peer supports",
            Self::INSUFFICIENT_RESPONDER_RESOURCES => {
                "the peer supports fewer READs and atomics in flight than requested"
            }
            Self::NO_QP | Self::NO_RESOURCES => "the peer has no free queue pairs or memory",
            _ => return None,
        })
    }
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "{words} ({})", self.0),
            None => write!(f, "Unknown ({})", self.0),
        }
    }
}

message! {
    /// DisconnectRequest (IBA 12.6.10): the sender ends the connection.
    Dreq = 0x15
    bits {
        /// The sender's id of the connection.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The receiver's id of the connection.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// QP number of the *receiver*, which compares it with its own.
        remote_qpn: Qpn = [(8, 0, 24)];
    }
    blocks {
        /// Private data of the application.
        private_data: [u8; 220] = 12;
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: DisconnectRequest LocalCommID={:#010x} RemoteCommID={:#010x} RemoteQPN={}",
            self.local_comm_id, self.remote_comm_id, self.remote_qpn
        )
    }
}

message! {
    /// DisconnectReply (IBA 12.6.11): the sender has ended the connection as well.
    Drep = 0x16
    bits {
        /// The sender's id of the connection.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The receiver's id of the connection.
        remote_comm_id: u32 = [(4, 0, 32)];
    }
    blocks {
        /// Private data of the application.
        private_data: [u8; 224] = 8;
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: DisconnectReply LocalCommID={:#010x} RemoteCommID={:#010x}",
            self.local_comm_id, self.remote_comm_id
        )
    }
}
