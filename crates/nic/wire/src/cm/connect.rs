//! Connection setup messages: REQ, REP, RTU and MRA (IBA 12.6.5 to 12.6.9).

use core::fmt;

use super::layout::message;
use super::{Answered, IpCmHeader, Path, ServiceId};
use crate::keys::{PKey, QKey};
use crate::psn::{Psn, Qpn};

message! {
    /// ConnectRequest (IBA 12.6.5): the active side requests a connection and proposes its parameters.
    Req = 0x10
    bits {
        /// Id that the sender gives this connection attempt; never 0.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Vendor id of Enhanced Connection Establishment, 24 bits; normally 0.
        ece_vendor_id: u32 = [(5, 0, 24)];
        /// Service id of the requested listener.
        service_id: ServiceId = [(8, 0, 64)];
        /// Node GUID of the sender.
        local_ca_guid: u64 = [(16, 0, 64)];
        /// Reliable datagrams only.
        local_qkey: QKey = [(28, 0, 32)];
        /// QP number of the sender.
        local_qpn: Qpn = [(32, 0, 24)];
        /// READs and atomics that the sender can serve at the same time.
        responder_resources: u8 = [(35, 0, 8)];
        /// Reliable datagrams only.
        local_eecn: u32 = [(36, 0, 24)];
        /// READs and atomics that the sender wants to have outstanding.
        initiator_depth: u8 = [(39, 0, 8)];
        /// Reliable datagrams only.
        remote_eecn: u32 = [(40, 0, 24)];
        /// Time within which the receiver should reply: 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = [(43, 0, 5)];
        /// [`Req::TRANSPORT_RC`], [`Req::TRANSPORT_UC`] or [`Req::TRANSPORT_EXTENDED`].
        transport: u8 = [(43, 5, 2)];
        /// Whether the sender's receive queue reports credits.
        flow_control: bool = [(43, 7, 1)];
        /// First PSN of the packets that the *receiver* of this message sends.
        starting_psn: Psn = [(44, 0, 24)];
        /// Time within which the sender replies: 4.096 us * 2^n.
        local_cm_response_timeout: u8 = [(47, 0, 5)];
        /// Transport retries of both QPs, 3 bits.
        retry_count: u8 = [(47, 5, 3)];
        /// Partition key.
        p_key: PKey = [(48, 0, 16)];
        /// Path MTU of both QPs: 1..=5 stands for 256, 512, 1024, 2048, 4096 bytes.
        path_mtu: u8 = [(50, 0, 4)];
        /// Reliable datagrams only.
        rdc_exists: bool = [(50, 4, 1)];
        /// RNR retries of the receiver's QP, 3 bits; 7 means no limit.
        rnr_retry_count: u8 = [(50, 5, 3)];
        /// Retransmissions of a CM message, 4 bits.
        max_cm_retries: u8 = [(51, 0, 4)];
        /// Whether the sender's QP uses a shared receive queue.
        srq: bool = [(51, 4, 1)];
        /// [`Req::EXTENDED_XRC`] if `transport` is [`Req::TRANSPORT_EXTENDED`].
        extended_transport: u8 = [(51, 5, 3)];
    }
    blocks {
        /// The path of the connection.
        primary: Path = 52;
        /// The path to migrate to; absent (all zero) on RoCE.
        alternate: Path = 96;
        /// Private data of the application; in IP port spaces it follows an [`IpCmHeader`].
        private_data: [u8; 92] = 140;
    }
}

impl Req {
    /// Value of `transport` for a reliable connection (RC).
    pub const TRANSPORT_RC: u8 = 0;
    /// Value of `transport` for an unreliable connection (UC).
    pub const TRANSPORT_UC: u8 = 1;
    /// Value of `transport` if `extended_transport` names the service.
    pub const TRANSPORT_EXTENDED: u8 = 3;
    /// Value of `extended_transport` for an extended reliable connection (XRC).
    pub const EXTENDED_XRC: u8 = 1;

    /// Returns the addresses of both ends from the front of the private data, or `None` if there is no such
    /// header.
    #[must_use]
    pub fn ip_header(&self) -> Option<IpCmHeader> {
        self.private_data.first_chunk().and_then(IpCmHeader::parse)
    }

    /// Returns the private data that the application passed, without the [`IpCmHeader`].
    #[must_use]
    pub fn user_data(&self) -> &[u8] {
        &self.private_data[IpCmHeader::LEN..]
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: ConnectRequest LocalCommID={:#010x} ServiceID={} LocalQPN={} StartingPSN={} \
             ResponderResources={} InitiatorDepth={} PathMTU={} RetryCount={} RNRRetryCount={} {}",
            self.local_comm_id,
            self.service_id,
            self.local_qpn,
            self.starting_psn,
            self.responder_resources,
            self.initiator_depth,
            self.path_mtu,
            self.retry_count,
            self.rnr_retry_count,
            self.primary
        )?;
        self.ip_header().map_or(Ok(()), |ip| write!(f, " {ip}"))
    }
}

message! {
    /// ConnectReply (IBA 12.6.8): the passive side accepts and names its QP.
    Rep = 0x13
    bits {
        /// The sender's id of the connection.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The receiver's id of the connection: `local_comm_id` of the request.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// Reliable datagrams only.
        local_qkey: QKey = [(8, 0, 32)];
        /// QP number of the sender.
        local_qpn: Qpn = [(12, 0, 24)];
        /// Vendor id of Enhanced Connection Establishment, 24 bits in three places; normally 0.
        ece_vendor_id: u32 = [(15, 0, 8), (19, 0, 8), (23, 0, 8)];
        /// XRC target QP number, or the end-to-end context of reliable datagrams.
        local_eecn: u32 = [(16, 0, 24)];
        /// First PSN of the packets that the *receiver* of this message sends.
        starting_psn: Psn = [(20, 0, 24)];
        /// READs and atomics that the sender will serve at the same time.
        responder_resources: u8 = [(24, 0, 8)];
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = [(25, 0, 8)];
        /// Longest time that the sender takes to acknowledge: 4.096 us * 2^n.
        target_ack_delay: u8 = [(26, 0, 5)];
        /// Whether the sender accepts the alternate path (0), and if not, why not.
        failover_accepted: u8 = [(26, 5, 2)];
        /// Whether the sender's receive queue reports credits.
        flow_control: bool = [(26, 7, 1)];
        /// RNR retries of the active side's QP, 3 bits; 7 means no limit.
        rnr_retry_count: u8 = [(27, 0, 3)];
        /// Whether the sender's QP uses a shared receive queue.
        srq: bool = [(27, 3, 1)];
        /// Node GUID of the sender.
        local_ca_guid: u64 = [(28, 0, 64)];
    }
    blocks {
        /// Private data of the application.
        private_data: [u8; 196] = 36;
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: ConnectReply LocalCommID={:#010x} RemoteCommID={:#010x} LocalQPN={} StartingPSN={} \
             ResponderResources={} InitiatorDepth={} RNRRetryCount={}",
            self.local_comm_id,
            self.remote_comm_id,
            self.local_qpn,
            self.starting_psn,
            self.responder_resources,
            self.initiator_depth,
            self.rnr_retry_count
        )
    }
}

message! {
    /// ReadyToUse (IBA 12.6.9): the active side has received the reply and its QP can receive.
    Rtu = 0x14
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

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: ReadyToUse LocalCommID={:#010x} RemoteCommID={:#010x}",
            self.local_comm_id, self.remote_comm_id
        )
    }
}

message! {
    /// MsgRcptAck (IBA 12.6.6): the message was received, but the reply takes longer than the response
    /// timeout.
    Mra = 0x11
    bits {
        /// The sender's id of the connection.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The receiver's id of the connection.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// Which message was received.
        message: Answered = [(8, 0, 2)];
        /// Time until the reply: 4.096 us * 2^n.
        service_timeout: u8 = [(9, 0, 5)];
    }
    blocks {
        /// Private data of the application.
        private_data: [u8; 222] = 10;
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: MsgRcptAck LocalCommID={:#010x} RemoteCommID={:#010x} Message={} ServiceTimeout={}",
            self.local_comm_id, self.remote_comm_id, self.message, self.service_timeout
        )
    }
}
