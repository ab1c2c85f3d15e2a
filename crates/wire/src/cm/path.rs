//! Paths, and changing the alternate one (IBA 12.6.5, 12.8). RoCE has no path migration, so LAP and APR are
//! only ever decoded.

use core::fmt;

use super::layout::{layout, message};
use crate::gid::Gid;
use crate::psn::Qpn;

layout! {
    /// A path as a ConnectRequest describes it, seen from its sender.
    #[derive(Default)]
    Path
    bits {
        /// [`Path::PERMISSIVE_LID`] on RoCE.
        local_lid: u16 = [(0, 0, 16)];
        /// [`Path::PERMISSIVE_LID`] on RoCE.
        remote_lid: u16 = [(2, 0, 16)];
        /// 20 bits.
        flow_label: u32 = [(36, 0, 20)];
        /// 6 bits; 0 is the port's current rate.
        packet_rate: u8 = [(39, 2, 6)];
        /// DSCP and ECN.
        traffic_class: u8 = [(40, 0, 8)];
        /// TTL of the connection's packets.
        hop_limit: u8 = [(41, 0, 8)];
        /// Service level, 4 bits.
        sl: u8 = [(42, 0, 4)];
        /// Whether no router lies between.
        subnet_local: bool = [(42, 4, 1)];
        /// When the receiver's QP shall resend: 4.096 us * 2^n.
        ack_timeout: u8 = [(43, 0, 5)];
    }
    blocks {
        /// The sender's address.
        local_gid: Gid = 4;
        /// The receiver's address.
        remote_gid: Gid = 20;
    }
}

impl Path {
    /// What stands in the LID fields where there are no LIDs.
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
    /// LoadAlternatePath (IBA 12.8.1).
    Lap = 0x19
    bits {
        /// Names the connection at the sender.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Names the connection at the receiver.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// The receiver's QP.
        remote_qpn: Qpn = [(12, 0, 24)];
        /// How fast the receiver should answer: 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = [(15, 0, 5)];
        /// LID of the sender.
        local_lid: u16 = [(20, 0, 16)];
        /// LID of the receiver.
        remote_lid: u16 = [(22, 0, 16)];
        /// 20 bits.
        flow_label: u32 = [(56, 0, 20)];
        /// DSCP and ECN.
        traffic_class: u8 = [(59, 0, 8)];
        /// TTL of the connection's packets.
        hop_limit: u8 = [(60, 0, 8)];
        /// 6 bits.
        packet_rate: u8 = [(61, 2, 6)];
        /// Service level, 4 bits.
        sl: u8 = [(62, 0, 4)];
        /// Whether no router lies between.
        subnet_local: bool = [(62, 4, 1)];
        /// When the receiver's QP shall resend: 4.096 us * 2^n.
        ack_timeout: u8 = [(63, 0, 5)];
    }
    blocks {
        /// The sender's address.
        local_gid: Gid = 24;
        /// The receiver's address.
        remote_gid: Gid = 40;
        /// The application's data.
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
    /// AlternatePathResponse (IBA 12.8.2).
    Apr = 0x1a
    bits {
        /// Names the connection at the sender.
        local_comm_id: u32 = [(0, 0, 32)];
        /// Names the connection at the receiver.
        remote_comm_id: u32 = [(4, 0, 32)];
        /// Valid bytes of `info`, at most 72.
        info_len: u8 = [(8, 0, 8)];
        /// 0 if the path was loaded.
        status: u8 = [(9, 0, 8)];
    }
    blocks {
        /// Additional information; its meaning depends on the status.
        info: [u8; 72] = 12;
        /// The application's data.
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
