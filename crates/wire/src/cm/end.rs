//! Ending a connection, or not beginning one: reject, disconnect (IBA 12.6.7, 12.6.10, 12.6.11).

use core::fmt;

use super::Answered;
use super::layout::{Bits, bits, message};
use crate::psn::Qpn;

message! {
    /// ConnectReject (IBA 12.6.7): no, and why.
    Rej = 0x12
    bits {
        /// Names the connection at the sender; 0 if it never got a name.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Names the connection at the receiver; 0 if unknown.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// What is being rejected.
        message: Answered = [(8, 0, 2)];
        /// Valid bytes of `ari`, at most 72.
        ari_len: u8 = [(9, 0, 7)];
        /// Why.
        reason: RejReason = [(10, 0, 16)];
    }
    blocks {
        /// Additional reject information; its meaning depends on the reason.
        ari: [u8; 72] = 12;
        /// The application's data; valid for [`RejReason::CONSUMER_DEFINED`].
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

/// Why a connection was rejected (IBA 12.6.7.2).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct RejReason(pub u16);

bits! {
    RejReason: bits => Self(bits as u16), v => u64::from(v.0);
}

macro_rules! reasons {
    ($($code:literal $id:ident: $words:literal;)*) => {
        impl RejReason {
            $(#[doc = concat!($words, ".")] pub const $id: Self = Self($code);)*

            /// The reason in words, if the code has one.
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

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "{words} ({})", self.0),
            None => write!(f, "Unknown ({})", self.0),
        }
    }
}

message! {
    /// DisconnectRequest (IBA 12.6.10): the connection is over.
    Dreq = 0x15
    bits {
        /// Names the connection at the sender.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Names the connection at the receiver.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// The *receiver's* QP, as a safeguard.
        remote_qpn: Qpn = [(8, 0, 24)];
    }
    blocks {
        /// The application's data.
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
    /// DisconnectReply (IBA 12.6.11): agreed.
    Drep = 0x16
    bits {
        /// Names the connection at the sender.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Names the connection at the receiver.
        remote_comm_id: u32 = [(4, 0, 32)];
    }
    blocks {
        /// The application's data.
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
