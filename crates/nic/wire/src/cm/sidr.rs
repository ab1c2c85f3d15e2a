//! Service id resolution: a request for the QP of a datagram service, and its reply (IBA 12.11.1, 12.11.2).

use core::fmt;

use super::layout::{Bits, bits, message};
use super::{IpCmHeader, ServiceId};
use crate::keys::{PKey, QKey};
use crate::psn::Qpn;

message! {
    /// ServiceIDResolutionRequest (IBA 12.11.1): the sender asks for the datagram QP of a service.
    SidrReq = 0x17
    bits {
        /// The sender's id of this request.
        request_id: u32 = [(0, 0, 32)];
        /// Partition key.
        p_key: PKey = [(4, 0, 16)];
        /// Service id of the requested listener.
        service_id: ServiceId = [(8, 0, 64)];
    }
    blocks {
        /// Private data of the application; in IP port spaces it follows an [`IpCmHeader`].
        private_data: [u8; 216] = 16;
    }
}

impl SidrReq {
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
    /// ServiceIDResolutionResponse (IBA 12.11.2): the QP of the service and its Q_Key.
    SidrRep = 0x18
    bits {
        /// `request_id` of the request.
        request_id: u32 = [(0, 0, 32)];
        /// Result of the resolution; QPN and Q_Key are valid for [`SidrStatus::SUCCESS`].
        status: SidrStatus = [(4, 0, 8)];
        /// Valid bytes of `info`, at most 72.
        info_len: u8 = [(5, 0, 8)];
        /// Vendor id of Enhanced Connection Establishment, 24 bits in two places; normally 0.
        ece_vendor_id: u32 = [(6, 0, 16), (11, 0, 8)];
        /// QP number of the service.
        qpn: Qpn = [(8, 0, 24)];
        /// Service id of the request.
        service_id: ServiceId = [(12, 0, 64)];
        /// Q_Key for datagrams to that QP.
        q_key: QKey = [(20, 0, 32)];
    }
    blocks {
        /// Additional information; its meaning depends on the status.
        info: [u8; 72] = 24;
        /// Private data of the application.
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

/// Result of a service id resolution (IBA 12.11.2.1).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct SidrStatus(pub u8);

bits! {
    SidrStatus: bits => Self(bits as u8), v => u64::from(v.0);
}

impl SidrStatus {
    /// The QPN and the Q_Key are valid.
    pub const SUCCESS: Self = Self(0);
    /// No listener has this service id.
    pub const UNSUPPORTED: Self = Self(1);
    /// The application rejected the request.
    pub const REJECT: Self = Self(2);
    /// No QP is available.
    pub const NO_QP: Self = Self(3);
    /// The service is at another port.
    pub const REDIRECT: Self = Self(4);
    /// The version is not supported.
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
