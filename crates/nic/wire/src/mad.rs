//! Management datagrams (MADs): 256 bytes to QP 1, starting with a common header of 24 bytes (IBA 13.4.3).
//!
//! ```text
//! | base_version  |  mgmt_class   | class_version |    method     |
//! |            status             |        class_specific         |
//! |                            tid (64)                           |
//! |         attribute_id          |           reserved            |
//! |                      attribute_modifier                       |
//! ```

use core::fmt;

use crate::bytes::{put, u16_at, u32_at, u64_at};

/// Length of every MAD with its header, in bytes.
pub const MAD_LEN: usize = 256;

/// Common MAD header (IBA 13.4.3).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MadHeader {
    /// Version of the header: [`MadHeader::BASE_VERSION`].
    pub base_version: u8,
    /// Management class; [`MadHeader::CLASS_CM`] for connection management.
    pub mgmt_class: u8,
    /// Version of the class; [`MadHeader::CLASS_VERSION_CM`].
    pub class_version: u8,
    /// Method; [`MadHeader::METHOD_SEND`] for every CM message, replies included.
    pub method: u8,
    /// Status of a response to Get or Set; otherwise 0.
    pub status: u16,
    /// Used by other classes only.
    pub class_specific: u16,
    /// Transaction id. CM messages are matched by communication ids instead.
    pub tid: u64,
    /// Type of the message.
    pub attribute_id: u16,
    /// 0, or the options of Enhanced Connection Establishment.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 24;

    /// The only base version.
    pub const BASE_VERSION: u8 = 1;
    /// Communication management (IBA 12).
    pub const CLASS_CM: u8 = 7;
    /// Version of the CM class.
    pub const CLASS_VERSION_CM: u8 = 2;
    /// Method Send: no response is implied.
    pub const METHOD_SEND: u8 = 3;

    /// Returns the header of a CM message.
    #[must_use]
    pub const fn cm(attribute_id: u16, tid: u64, attribute_modifier: u32) -> Self {
        Self {
            base_version: Self::BASE_VERSION,
            mgmt_class: Self::CLASS_CM,
            class_version: Self::CLASS_VERSION_CM,
            method: Self::METHOD_SEND,
            status: 0,
            class_specific: 0,
            tid,
            attribute_id,
            attribute_modifier,
        }
    }

    /// Returns whether this is the header of a CM message in the supported version.
    #[must_use]
    pub const fn is_cm(&self) -> bool {
        self.base_version == Self::BASE_VERSION
            && self.mgmt_class == Self::CLASS_CM
            && self.class_version == Self::CLASS_VERSION_CM
            && self.method == Self::METHOD_SEND
    }

    /// Decodes the header. Reserved bits are ignored.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            base_version: bytes[0],
            mgmt_class: bytes[1],
            class_version: bytes[2],
            method: bytes[3],
            status: u16_at(bytes, 4),
            class_specific: u16_at(bytes, 6),
            tid: u64_at(bytes, 8),
            attribute_id: u16_at(bytes, 16),
            attribute_modifier: u32_at(bytes, 20),
        }
    }

    /// Encodes into the wire format.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[0] = self.base_version;
        bytes[1] = self.mgmt_class;
        bytes[2] = self.class_version;
        bytes[3] = self.method;
        put(bytes, 4, self.status.to_be_bytes());
        put(bytes, 6, self.class_specific.to_be_bytes());
        put(bytes, 8, self.tid.to_be_bytes());
        put(bytes, 16, self.attribute_id.to_be_bytes());
        put(bytes, 18, [0, 0]);
        put(bytes, 20, self.attribute_modifier.to_be_bytes());
    }
}

impl fmt::Display for MadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MAD Class={:#04x} Method={:#04x} Status={:#06x} TransactionID={:#018x} Attribute={:#06x}",
            self.mgmt_class, self.method, self.status, self.tid, self.attribute_id
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field_or_reserved() {
        let mut reserved = [0; MadHeader::LEN];
        put(&mut reserved, 18, [0xff, 0xff]);
        crate::bytes::check_every_bit(reserved, |bytes| {
            let mut out = [0; MadHeader::LEN];
            MadHeader::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn another_class_version_or_method_is_no_cm_message() {
        let cm = MadHeader::cm(0x10, 1, 0);
        assert!(cm.is_cm());
        assert!(!MadHeader { base_version: 2, ..cm }.is_cm());
        assert!(!MadHeader { mgmt_class: 3, ..cm }.is_cm());
        assert!(!MadHeader { class_version: 1, ..cm }.is_cm());
        assert!(!MadHeader { method: 0x81, ..cm }.is_cm());
    }
}
