//! Messages of the connection manager (IBA 12.6, 12.11): MADs of 256 bytes between QP 1 of two nodes.
//!
//! ```text
//! active  ConnectRequest ->           DisconnectRequest ->
//! passive              <- ConnectReply                  <- DisconnectReply
//! active  ReadyToUse ->
//! ```
//!
//! Each message is a struct generated from a table of fields (`layout.rs`). "Local" always refers to the
//! sender of the message. The transport crate decides when to send which message.

mod connect;
mod end;
mod ip;
mod layout;
mod path;
mod sidr;

use core::fmt;

use crate::drop::DropReason;
use crate::mad::{MAD_LEN, MadHeader};

pub use connect::{Mra, Rep, Req, Rtu};
pub use end::{Drep, Dreq, Rej, RejReason};
pub use ip::{IpCmHeader, ServiceId};
pub use path::{Apr, Lap, Path};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

/// Any message of the connection manager.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)] // Each variant is documented at its struct.
pub enum CmMessage {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
}

impl CmMessage {
    /// Decodes a MAD.
    ///
    /// # Errors
    /// [`DropReason::BadMad`] if the MAD has another class, version or method, or an unknown attribute.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, DropReason> {
        let header = mad.first_chunk().map(MadHeader::parse).ok_or(DropReason::BadMad)?;
        if !header.is_cm() {
            return Err(DropReason::BadMad);
        }
        Ok(match header.attribute_id {
            Req::ATTRIBUTE => Self::Req(Req::parse(mad)),
            Mra::ATTRIBUTE => Self::Mra(Mra::parse(mad)),
            Rej::ATTRIBUTE => Self::Rej(Rej::parse(mad)),
            Rep::ATTRIBUTE => Self::Rep(Rep::parse(mad)),
            Rtu::ATTRIBUTE => Self::Rtu(Rtu::parse(mad)),
            Dreq::ATTRIBUTE => Self::Dreq(Dreq::parse(mad)),
            Drep::ATTRIBUTE => Self::Drep(Drep::parse(mad)),
            SidrReq::ATTRIBUTE => Self::SidrReq(SidrReq::parse(mad)),
            SidrRep::ATTRIBUTE => Self::SidrRep(SidrRep::parse(mad)),
            Lap::ATTRIBUTE => Self::Lap(Lap::parse(mad)),
            Apr::ATTRIBUTE => Self::Apr(Apr::parse(mad)),
            _ => return Err(DropReason::BadMad),
        })
    }

    /// Encodes the whole MAD with its header.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        match self {
            Self::Req(m) => m.emit(mad),
            Self::Mra(m) => m.emit(mad),
            Self::Rej(m) => m.emit(mad),
            Self::Rep(m) => m.emit(mad),
            Self::Rtu(m) => m.emit(mad),
            Self::Dreq(m) => m.emit(mad),
            Self::Drep(m) => m.emit(mad),
            Self::SidrReq(m) => m.emit(mad),
            Self::SidrRep(m) => m.emit(mad),
            Self::Lap(m) => m.emit(mad),
            Self::Apr(m) => m.emit(mad),
        }
    }
}

impl fmt::Display for CmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Req(m) => m.fmt(f),
            Self::Mra(m) => m.fmt(f),
            Self::Rej(m) => m.fmt(f),
            Self::Rep(m) => m.fmt(f),
            Self::Rtu(m) => m.fmt(f),
            Self::Dreq(m) => m.fmt(f),
            Self::Drep(m) => m.fmt(f),
            Self::SidrReq(m) => m.fmt(f),
            Self::SidrRep(m) => m.fmt(f),
            Self::Lap(m) => m.fmt(f),
            Self::Apr(m) => m.fmt(f),
        }
    }
}

/// The message that an [`Mra`] or [`Rej`] refers to; 2 bits.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Answered(pub u8);

impl Answered {
    /// A connection request.
    pub const REQ: Self = Self(0);
    /// A connection reply.
    pub const REP: Self = Self(1);
    /// Another message; in an MRA a LAP.
    pub const OTHER: Self = Self(2);
}

layout::bits! {
    Answered: bits => Self(bits as u8), v => u64::from(v.0);
}

use layout::Bits;

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::REQ => f.write_str("REQ"),
            Self::REP => f.write_str("REP"),
            _ => f.write_str("other"),
        }
    }
}

/// Returns `user` padded with zeros to `N` bytes, or `None` if it is longer. Private data has no length on
/// the wire.
#[must_use]
pub fn private_data<const N: usize>(user: &[u8]) -> Option<[u8; N]> {
    let mut data = [0; N];
    data.get_mut(..user.len())?.copy_from_slice(user);
    Some(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::check_every_bit;

    const BODY: usize = MAD_LEN - MadHeader::LEN;

    /// Checks that each bit of the body is a field or reserved. `reserved` lists the reserved bits as `(byte,
    /// mask)`; a run of bytes is `(first..last, 0xff)`.
    fn check<M>(
        attribute: u16,
        parse: impl Fn(&[u8; MAD_LEN]) -> M,
        emit: impl Fn(&M, &mut [u8; MAD_LEN]),
        reserved: &[(core::ops::Range<usize>, u8)],
    ) {
        let mut mask = [0; BODY];
        for (bytes, bits) in reserved {
            mask[bytes.clone()].fill(*bits);
        }
        check_every_bit(mask, |body| {
            let mut mad = [0; MAD_LEN];
            mad[MadHeader::LEN..].copy_from_slice(body);
            let mut out = [0xee; MAD_LEN];
            emit(&parse(&mad), &mut out);
            let header = MadHeader::parse(out.first_chunk().unwrap());
            assert_eq!(header, MadHeader::cm(attribute, 0, 0));
            crate::bytes::array(&out, MadHeader::LEN)
        });
    }

    #[test]
    fn every_bit_is_a_field_or_reserved() {
        let path = |base: usize| {
            [(base + 38..base + 39, 0x0f), (base + 39..base + 40, 0xc0), (base + 42..base + 43, 0x07)]
                .into_iter()
                .chain([(base + 43..base + 44, 0x07)])
        };
        let mut req = [const { (0..0, 0) }; 10];
        req[0] = (4..5, 0xff);
        req[1] = (24..28, 0xff);
        for (slot, row) in req[2..].iter_mut().zip(path(52).chain(path(96))) {
            *slot = row;
        }
        check(0x10, Req::parse, Req::emit, &req);
        check(0x11, Mra::parse, Mra::emit, &[(8..9, 0x3f), (9..10, 0x07)]);
        check(0x12, Rej::parse, Rej::emit, &[(8..9, 0x3f), (9..10, 0x01)]);
        check(0x13, Rep::parse, Rep::emit, &[(27..28, 0x0f)]);
        check(0x14, Rtu::parse, Rtu::emit, &[]);
        check(0x15, Dreq::parse, Dreq::emit, &[(11..12, 0xff)]);
        check(0x16, Drep::parse, Drep::emit, &[]);
        check(0x17, SidrReq::parse, SidrReq::emit, &[(6..8, 0xff)]);
        check(0x18, SidrRep::parse, SidrRep::emit, &[]);
        let lap = [
            (8..12, 0xff),
            (15..16, 0x07),
            (16..20, 0xff),
            (58..59, 0x0f),
            (61..62, 0xc0),
            (62..63, 0x07),
            (63..64, 0x07),
        ];
        check(0x19, Lap::parse, Lap::emit, &lap);
        check(0x1a, Apr::parse, Apr::emit, &[(10..12, 0xff)]);
    }

    #[test]
    fn the_mad_header_carries_the_transaction_id_and_the_ece_options() {
        let req = Req { tid: 0x0102_0304_0506_0708, attribute_modifier: 0x0a0b_0c0d, ..Req::default() };
        let mut mad = [0; MAD_LEN];
        req.emit(&mut mad);
        let header = MadHeader::parse(mad.first_chunk().unwrap());
        assert_eq!(header, MadHeader::cm(0x10, req.tid, req.attribute_modifier));
        assert_eq!(CmMessage::parse(&mad), Ok(CmMessage::Req(req)));
    }

    #[test]
    fn a_value_wider_than_its_field_is_cut() {
        let mut mad = [0; MAD_LEN];
        Req { retry_count: 0xff, ..Req::default() }.emit(&mut mad);
        assert_eq!(Req::parse(&mad), Req { retry_count: 7, ..Req::default() });
    }

    #[test]
    fn a_mad_that_is_no_cm_message_is_refused() {
        let mut mad = [0; MAD_LEN];
        assert_eq!(CmMessage::parse(&mad), Err(DropReason::BadMad));
        Rtu::default().emit(&mut mad);
        assert!(CmMessage::parse(&mad).is_ok());
        for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 0x81), (17, 0x1b), (16, 1)] {
            let mut mad = mad;
            mad[at] = value;
            assert_eq!(CmMessage::parse(&mad), Err(DropReason::BadMad), "byte {at}");
        }
    }

    #[test]
    fn private_data_is_padded_and_refused_if_too_long() {
        assert_eq!(private_data::<4>(b"ab"), Some(*b"ab\0\0"));
        assert_eq!(private_data::<4>(b"abcd"), Some(*b"abcd"));
        assert_eq!(private_data::<4>(b"abcde"), None);
    }
}
