//! Base transport header: the first twelve bytes of every packet (IBA 9.2).
//!
//! ```text
//!  0               1               2               3
//! +---------------+-+-+---+-------+-------------------------------+
//! |    opcode     |S|M|pad| tver  |             p_key             |
//! +-+-+-----------+-+-+---+-------+-------------------------------+
//! |F|B| reserved  |                   dest_qp                     |
//! +-+-+-----------+-----------------------------------------------+
//! |A|  reserved   |                     psn                       |
//! +-+-------------+-----------------------------------------------+
//! ```

use core::fmt;

use crate::bytes::{put, put_u24, u16_at, u24_at};
use crate::keys::PKey;
use crate::opcode::Opcode;
use crate::psn::{Psn, Qpn};

/// Base transport header (IBA 9.2).
///
/// ```
/// use roxie_wire::{Bth, Opcode, PKey, Psn, Qpn};
///
/// let (dest_qp, psn) = (Qpn::new(5), Psn::new(0xffffff));
/// let bth = Bth { opcode: Opcode::RC_ACKNOWLEDGE, dest_qp, psn, ..Bth::default() };
/// let mut bytes = [0; Bth::LEN];
/// bth.emit(&mut bytes);
/// assert_eq!(bytes, [0x11, 0, 0xff, 0xff, 0, 0, 0, 5, 0, 0xff, 0xff, 0xff]);
/// assert_eq!(Bth::parse(&bytes), bth);
/// assert_eq!(bth.p_key, PKey::DEFAULT);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bth {
    /// Operation of the packet; it also decides which extension headers follow.
    pub opcode: Opcode,
    /// S: solicited event. The receiver's completion wakes an application that waits for solicited events
    /// only.
    pub solicited: bool,
    /// M: path migration state. RoCE ignores it on receive.
    pub mig_req: bool,
    /// Pad bytes between payload and ICRC, 0..=3.
    pub pad_cnt: u8,
    /// Transport header version, 4 bits. A receiver accepts 0 only.
    pub tver: u8,
    /// Partition key of the sender.
    pub p_key: PKey,
    /// F: forward congestion. A switch on the path marked the packet.
    pub fecn: bool,
    /// B: backward congestion. The receiver of this packet reduces its rate towards the sender; set in a CNP.
    pub becn: bool,
    /// Number of the destination queue pair.
    pub dest_qp: Qpn,
    /// A: the requester asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 12;

    const SOLICITED: u8 = 0x80;
    const MIG_REQ: u8 = 0x40;
    const FECN: u8 = 0x80;
    const BECN: u8 = 0x40;
    const ACK_REQ: u8 = 0x80;

    /// Decodes the header. Reserved bits are ignored.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            opcode: Opcode(bytes[0]),
            solicited: bytes[1] & Self::SOLICITED != 0,
            mig_req: bytes[1] & Self::MIG_REQ != 0,
            pad_cnt: bytes[1] >> 4 & 3,
            tver: bytes[1] & 0xf,
            p_key: PKey(u16_at(bytes, 2)),
            fecn: bytes[4] & Self::FECN != 0,
            becn: bytes[4] & Self::BECN != 0,
            dest_qp: Qpn::new(u24_at(bytes, 5)),
            ack_req: bytes[8] & Self::ACK_REQ != 0,
            psn: Psn::new(u24_at(bytes, 9)),
        }
    }

    /// Encodes the header. Reserved bits are zero; `pad_cnt` and `tver` are cut to their width.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        bytes[0] = self.opcode.0;
        bytes[1] = flag(self.solicited, Self::SOLICITED)
            | flag(self.mig_req, Self::MIG_REQ)
            | (self.pad_cnt & 3) << 4
            | self.tver & 0xf;
        put(bytes, 2, self.p_key.0.to_be_bytes());
        bytes[4] = flag(self.fecn, Self::FECN) | flag(self.becn, Self::BECN);
        put_u24(bytes, 5, self.dest_qp.value());
        bytes[8] = flag(self.ack_req, Self::ACK_REQ);
        put_u24(bytes, 9, self.psn.value());
    }
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QP={} PSN={}", self.opcode, self.dest_qp, self.psn)?;
        for (set, word) in [
            (self.solicited, " SE"),
            (self.mig_req, " MigReq"),
            (self.fecn, " FECN"),
            (self.becn, " BECN"),
            (self.ack_req, " AckReq"),
        ] {
            if set {
                f.write_str(word)?;
            }
        }
        if self.pad_cnt != 0 {
            write!(f, " Pad={}", self.pad_cnt)?;
        }
        if self.p_key != PKey::DEFAULT {
            write!(f, " P_Key={}", self.p_key)?;
        }
        if self.tver != 0 {
            write!(f, " TVer={}", self.tver)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn every_bit_is_a_field_or_reserved() {
        let reserved = [0, 0, 0, 0, 0x3f, 0, 0, 0, 0x7f, 0, 0, 0];
        crate::bytes::check_every_bit(reserved, |bytes| {
            let mut out = [0; Bth::LEN];
            Bth::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn a_known_header_decodes() {
        let bth = Bth::parse(&[0x04, 0xb0, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0x12, 0x34, 0x56]);
        let want = Bth {
            opcode: Opcode::RC_SEND_ONLY,
            solicited: true,
            pad_cnt: 3,
            dest_qp: Qpn::new(0x12),
            ack_req: true,
            psn: Psn::new(0x12_3456),
            ..Bth::default()
        };
        assert_eq!(bth, want);
        assert_eq!(bth.to_string(), "RC SEND Only QP=0x000012 PSN=1193046 SE AckReq Pad=3");
    }
}
