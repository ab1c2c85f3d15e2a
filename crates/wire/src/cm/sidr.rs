//! Finding a datagram QP by service: request and reply (IBA 12.11.1, 12.11.2).

use core::fmt;

use super::layout::{Bits, bits, message};
use super::{IpCmHeader, ServiceId};
use crate::keys::{PKey, QKey};
use crate::psn::Qpn;

message! {
    /// ServiceIDResolutionRequest (IBA 12.11.1): which QP serves this?
    SidrReq = 0x17
    bits {
        /// Names this question at the sender.
        request_id: u32 = [(0, 0, 32)];
        /// Partition.
        p_key: PKey = [(4, 0, 16)];
        /// Which listener is wanted.
        service_id: ServiceId = [(8, 0, 64)];
    }
    blocks {
        /// The application's data, behind an [`IpCmHeader`] in IP port spaces.
        private_data: [u8; 216] = 16;
    }
}

impl SidrReq {
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

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: ServiceIDResolutionRequest RequestID={:#010x} ServiceID={}",
            self.request_id, self.service_id
        )?;
        self.ip_header().map_or(Ok(()), |ip| write!(f, " {ip}"))
    }
}

message! {
    /// ServiceIDResolutionResponse (IBA 12.11.2): this one, with this key.
    SidrRep = 0x18
    bits {
        /// The question's id.
        request_id: u32 = [(0, 0, 32)];
        /// Whether there is an answer.
        status: SidrStatus = [(4, 0, 8)];
        /// Valid bytes of `info`, at most 72.
        info_len: u8 = [(5, 0, 8)];
        /// Vendor of Enhanced Connection Establishment, 24 bits in two places; normally 0.
        ece_vendor_id: u32 = [(6, 0, 16), (11, 0, 8)];
        /// The QP to send to.
        qpn: Qpn = [(8, 0, 24)];
        /// The question's service.
        service_id: ServiceId = [(12, 0, 64)];
        /// The key to send with.
        q_key: QKey = [(20, 0, 32)];
    }
    blocks {
        /// Additional information; its meaning depends on the status.
        info: [u8; 72] = 24;
        /// The application's data.
        private_data: [u8; 136] = 96;
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM: ServiceIDResolutionResponse RequestID={:#010x} Status={} QPN={} Q_Key={} ServiceID={}",
            self.request_id, self.status, self.qpn, self.q_key, self.service_id
        )
    }
}

/// Outcome of a service resolution (IBA 12.11.2.1).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct SidrStatus(pub u8);

bits! {
    SidrStatus: bits => Self(bits as u8), v => u64::from(v.0);
}

impl SidrStatus {
    /// QPN and Q_Key are valid.
    pub const SUCCESS: Self = Self(0);
    /// Nobody listens there.
    pub const UNSUPPORTED: Self = Self(1);
    /// The application said no.
    pub const REJECT: Self = Self(2);
    /// No QP available.
    pub const NO_QP: Self = Self(3);
    /// Ask elsewhere.
    pub const REDIRECT: Self = Self(4);
    /// Version not supported.
    pub const UNSUPPORTED_VERSION: Self = Self(5);
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SUCCESS => f.write_str("success"),
            Self::UNSUPPORTED => f.write_str("service not supported"),
            Self::REJECT => f.write_str("rejected"),
            Self::NO_QP => f.write_str("no QP"),
            Self::REDIRECT => f.write_str("redirect"),
            Self::UNSUPPORTED_VERSION => f.write_str("version not supported"),
            Self(other) => write!(f, "Unknown ({other})"),
        }
    }
}
