//! The path in a REQ, and the messages that load an alternate path: LAP, APR (IBA 12.6.5, 12.8). RoCE has no
//! path migration, so roxie decodes LAP and APR and never sends them.

use core::fmt;

use super::layout::{layout, message};
use crate::gid::Gid;
use crate::psn::Qpn;

layout! {
    /// A path in a [`Req`](super::Req), as the sender of the REQ sees it.
    #[derive(Default)]
    Path
    bits {
        /// [`Path::PERMISSIVE_LID`] on RoCE.
        local_lid: u16 = [(0, 0, 16)];
        /// [`Path::PERMISSIVE_LID`] on RoCE.
        remote_lid: u16 = [(2, 0, 16)];
        /// IPv6 flow label, 20 bits.
        flow_label: u32 = [(36, 0, 20)];
        /// Static rate, 6 bits; 0 is the current rate of the port.
        packet_rate: u8 = [(39, 2, 6)];
        /// DSCP (6 bits) and ECN (2 bits).
        traffic_class: u8 = [(40, 0, 8)];
        /// TTL or hop limit of the packets.
        hop_limit: u8 = [(41, 0, 8)];
        /// Service level, 4 bits.
        sl: u8 = [(42, 0, 4)];
        /// Whether both ends are in one subnet, without a router between them.
        subnet_local: bool = [(42, 4, 1)];
        /// ACK timeout of the receiver's QP: 4.096 us * 2^n.
        ack_timeout: u8 = [(43, 0, 5)];
    }
    blocks {
        /// GID of the sender.
        local_gid: Gid = 4;
        /// GID of the receiver.
        remote_gid: Gid = 20;
    }
}

impl Path {
    /// Value of the LID fields on RoCE, which has no LIDs.
    pub const PERMISSIVE_LID: u16 = 0xffff;
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LocalGID={} RemoteGID={} HopLimit={} AckTimeout={}",
            self.local_gid, self.remote_gid, self.hop_limit, self.ack_timeout
        )
    }
}

message! {
    /// LoadAlternatePath (IBA 12.8.1): the sender proposes an alternate path.
    Lap = 0x19
    bits {
        /// The sender's id of the connection.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The receiver's id of the connection.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// QP number of the receiver.
        remote_qpn: Qpn = [(12, 0, 24)];
        /// Time within which the receiver should reply: 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = [(15, 0, 5)];
        /// LID of the sender.
        local_lid: u16 = [(20, 0, 16)];
        /// LID of the receiver.
        remote_lid: u16 = [(22, 0, 16)];
        /// IPv6 flow label, 20 bits.
        flow_label: u32 = [(56, 0, 20)];
        /// DSCP (6 bits) and ECN (2 bits).
        traffic_class: u8 = [(59, 0, 8)];
        /// TTL or hop limit of the packets.
        hop_limit: u8 = [(60, 0, 8)];
        /// Static rate, 6 bits.
        packet_rate: u8 = [(61, 2, 6)];
        /// Service level, 4 bits.
        sl: u8 = [(62, 0, 4)];
        /// Whether both ends are in one subnet, without a router between them.
        subnet_local: bool = [(62, 4, 1)];
        /// ACK timeout of the receiver's QP: 4.096 us * 2^n.
        ack_timeout: u8 = [(63, 0, 5)];
    }
    blocks {
        /// GID of the sender.
        local_gid: Gid = 24;
        /// GID of the receiver.
        remote_gid: Gid = 40;
        /// Private data of the application.
        private_data: [u8; 168] = 64;
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: LoadAlternatePath LocalCommID={:#010x} RemoteCommID={:#010x} RemoteQPN={}",
            self.local_comm_id, self.remote_comm_id, self.remote_qpn
        )
    }
}

message! {
    /// AlternatePathResponse (IBA 12.8.2): the result of a [`Lap`].
    Apr = 0x1a
    bits {
        /// The sender's id of the connection.
        local_comm_id: u32 = [(0, 0, 32)];
        /// The receiver's id of the connection.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// Valid bytes of `info`, at most 72.
        info_len: u8 = [(8, 0, 8)];
        /// 0 if the path was loaded, otherwise an error code.
        status: u8 = [(9, 0, 8)];
    }
    blocks {
        /// Additional information; its meaning depends on the status.
        info: [u8; 72] = 12;
        /// Private data of the application.
        private_data: [u8; 148] = 84;
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: AlternatePathResponse LocalCommID={:#010x} RemoteCommID={:#010x} Status={}",
            self.local_comm_id, self.remote_comm_id, self.status
        )
    }
}
