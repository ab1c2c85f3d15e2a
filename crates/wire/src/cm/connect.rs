//! Setting a connection up: request, reply, ready to use, and "wait, I got it" (IBA 12.6.5 to 12.6.9).

use core::fmt;

use super::layout::message;
use super::{Answered, IpCmHeader, Path, ServiceId};
use crate::keys::{PKey, QKey};
use crate::psn::{Psn, Qpn};

message! {
    /// ConnectRequest (IBA 12.6.5): the active side asks for a connection and proposes every parameter.
    Req = 0x10
    bits {
        /// Names this connection attempt at the sender; never 0.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Vendor of Enhanced Connection Establishment, 24 bits; normally 0.
        ece_vendor_id: u32 = [(5, 0, 24)];
        /// Which listener is wanted.
        service_id: ServiceId = [(8, 0, 64)];
        /// Node GUID of the sender.
        local_ca_guid: u64 = [(16, 0, 64)];
        /// Only for reliable datagrams.
        local_qkey: QKey = [(28, 0, 32)];
        /// QP of the sender.
        local_qpn: Qpn = [(32, 0, 24)];
        /// READs and atomics the sender can serve at a time.
        responder_resources: u8 = [(35, 0, 8)];
        /// Only for reliable datagrams.
        local_eecn: u32 = [(36, 0, 24)];
        /// READs and atomics the sender wants to have outstanding.
        initiator_depth: u8 = [(39, 0, 8)];
        /// Only for reliable datagrams.
        remote_eecn: u32 = [(40, 0, 24)];
        /// How fast the receiver should answer: 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = [(43, 0, 5)];
        /// [`Req::TRANSPORT_RC`], [`Req::TRANSPORT_UC`] or [`Req::TRANSPORT_EXTENDED`].
        transport: u8 = [(43, 5, 2)];
        /// Whether the sender's receive queue reports credits.
        flow_control: bool = [(43, 7, 1)];
        /// First PSN the *receiver* of this message shall send.
        starting_psn: Psn = [(44, 0, 24)];
        /// How fast the sender answers: 4.096 us * 2^n.
        local_cm_response_timeout: u8 = [(47, 0, 5)];
        /// Transport retries of both QPs, 3 bits.
        retry_count: u8 = [(47, 5, 3)];
        /// Partition.
        p_key: PKey = [(48, 0, 16)];
        /// Path MTU of both QPs: 1..=5 for 256..=4096 bytes.
        path_mtu: u8 = [(50, 0, 4)];
        /// Only for reliable datagrams.
        rdc_exists: bool = [(50, 4, 1)];
        /// RNR retries of the receiver's QP, 3 bits; 7 means forever.
        rnr_retry_count: u8 = [(50, 5, 3)];
        /// How often CM messages are repeated, 4 bits.
        max_cm_retries: u8 = [(51, 0, 4)];
        /// Whether the sender's QP uses a shared receive queue.
        srq: bool = [(51, 4, 1)];
        /// [`Req::EXTENDED_XRC`], if `transport` is extended.
        extended_transport: u8 = [(51, 5, 3)];
    }
    blocks {
        /// The path to use.
        primary: Path = 52;
        /// The path to migrate to; absent (all zero) on RoCE.
        alternate: Path = 96;
        /// The application's data, behind an [`IpCmHeader`] in IP port spaces.
        private_data: [u8; 92] = 140;
    }
}

impl Req {
    /// `transport` of a reliable connection.
    pub const TRANSPORT_RC: u8 = 0;
    /// `transport` of an unreliable connection.
    pub const TRANSPORT_UC: u8 = 1;
    /// `transport` of one that `extended_transport` names.
    pub const TRANSPORT_EXTENDED: u8 = 3;
    /// `extended_transport` of an extended reliable connection.
    pub const EXTENDED_XRC: u8 = 1;

    /// Who asks whom, from the front of the private data. `None` if it is no such header.
    #[must_use]
    pub fn ip_header(&self) -> Option<IpCmHeader> {
        self.private_data.first_chunk().and_then(IpCmHeader::parse)
    }

    /// What the application sent along.
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
    /// ConnectReply (IBA 12.6.8): the passive side agrees and names its QP.
    Rep = 0x13
    bits {
        /// Names the connection at the sender.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The request's `local_comm_id`.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// Only for reliable datagrams.
        local_qkey: QKey = [(8, 0, 32)];
        /// QP of the sender.
        local_qpn: Qpn = [(12, 0, 24)];
        /// Vendor of Enhanced Connection Establishment, 24 bits in three places; normally 0.
        ece_vendor_id: u32 = [(15, 0, 8), (19, 0, 8), (23, 0, 8)];
        /// XRC target QP, or the end-to-end context of reliable datagrams.
        local_eecn: u32 = [(16, 0, 24)];
        /// First PSN the *receiver* of this message shall send.
        starting_psn: Psn = [(20, 0, 24)];
        /// READs and atomics the sender will serve at a time.
        responder_resources: u8 = [(24, 0, 8)];
        /// READs and atomics the sender will have outstanding.
        initiator_depth: u8 = [(25, 0, 8)];
        /// How long the sender may take to acknowledge: 4.096 us * 2^n.
        target_ack_delay: u8 = [(26, 0, 5)];
        /// What became of the alternate path.
        failover_accepted: u8 = [(26, 5, 2)];
        /// Whether the sender's receive queue reports credits.
        flow_control: bool = [(26, 7, 1)];
        /// RNR retries of the active side's QP, 3 bits; 7 means forever.
        rnr_retry_count: u8 = [(27, 0, 3)];
        /// Whether the sender's QP uses a shared receive queue.
        srq: bool = [(27, 3, 1)];
        /// Node GUID of the sender.
        local_ca_guid: u64 = [(28, 0, 64)];
    }
    blocks {
        /// The application's data.
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
    /// ReadyToUse (IBA 12.6.9): the active side has seen the reply and can receive.
    Rtu = 0x14
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
    /// MsgRcptAck (IBA 12.6.6): received, but the answer will take longer than the response timeout.
    Mra = 0x11
    bits {
        /// Names the connection at the sender.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Names the connection at the receiver.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// What was received.
        message: Answered = [(8, 0, 2)];
        /// How long the answer may take: 4.096 us * 2^n.
        service_timeout: u8 = [(9, 0, 5)];
    }
    blocks {
        /// The application's data.
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
