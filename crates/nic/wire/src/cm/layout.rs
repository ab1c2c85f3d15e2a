//! Tables that describe CM messages. A row describes one field; macros generate the struct, `parse` and
//! `emit` from the rows, so that `parse` and `emit` cannot disagree.
//!
//! A row of `bits` lists pieces `(byte, skip, width)`: `width` bits after the first `skip` bits of `byte`,
//! most significant bit first, big-endian. Most fields have one piece; the pieces of a split field are listed
//! in order. A row of `blocks` gives the first byte of a field of whole bytes. Bits that no row covers are
//! reserved.

use crate::gid::Gid;
use crate::keys::{PKey, QKey};
use crate::psn::{Psn, Qpn};

/// A field of at most 64 bits.
pub(super) trait Bits: Copy {
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

/// A field of whole bytes.
pub(super) trait Block: Sized {
    fn read(bytes: &[u8]) -> Self;
    fn write(&self, bytes: &mut [u8]);
}

/// Returns `width` bits as a number, most significant bit first.
pub(super) fn get(bytes: &[u8], byte: usize, skip: usize, width: usize) -> u64 {
    let first = byte * 8 + skip;
    (first..first + width).fold(0, |value, bit| value << 1 | u64::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
}

/// Stores the low `width` bits of `value`.
pub(super) fn set(bytes: &mut [u8], byte: usize, skip: usize, width: usize, value: u64) {
    let first = byte * 8 + skip;
    for bit in first..first + width {
        let mask = 0x80 >> (bit % 8);
        if value >> (first + width - 1 - bit) & 1 != 0 {
            bytes[bit / 8] |= mask;
        } else {
            bytes[bit / 8] &= !mask;
        }
    }
}

macro_rules! bits {
    ($($ty:ty: $bits:ident => $from:expr, $value:ident => $to:expr;)*) => {$(
        impl Bits for $ty {
            fn from_bits($bits: u64) -> Self {
                $from
            }
            fn bits(self) -> u64 {
                let $value = self;
                $to
            }
        }
    )*};
}
pub(super) use bits;

bits! {
    bool: bits => bits != 0, v => u64::from(v);
    u8: bits => bits as u8, v => u64::from(v);
    u16: bits => bits as u16, v => u64::from(v);
    u32: bits => bits as u32, v => u64::from(v);
    u64: bits => bits, v => v;
    Qpn: bits => Qpn::new(bits as u32), v => u64::from(v.value());
    Psn: bits => Psn::new(bits as u32), v => u64::from(v.value());
    PKey: bits => PKey(bits as u16), v => u64::from(v.0);
    QKey: bits => QKey(bits as u32), v => u64::from(v.0);
}

impl<const N: usize> Block for [u8; N] {
    fn read(bytes: &[u8]) -> Self {
        crate::bytes::array(bytes, 0)
    }
    fn write(&self, bytes: &mut [u8]) {
        bytes[..N].copy_from_slice(self);
    }
}

impl Block for Gid {
    fn read(bytes: &[u8]) -> Self {
        Self(Block::read(bytes))
    }
    fn write(&self, bytes: &mut [u8]) {
        self.0.write(bytes);
    }
}

/// Generates a struct and its `Block` implementation from rows.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $name:ident
        bits {$($(#[doc = $fdoc:literal])* $field:ident: $fty:ty =
            [$(($byte:expr, $skip:expr, $width:expr)),+];)*}
        blocks {$($(#[doc = $bdoc:literal])* $block:ident: $bty:ty = $at:expr;)*}
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub struct $name {
            $($(#[doc = $fdoc])* pub $field: $fty,)*
            $($(#[doc = $bdoc])* pub $block: $bty,)*
        }

        impl $crate::cm::layout::Block for $name {
            fn read(bytes: &[u8]) -> Self {
                use $crate::cm::layout::{Bits, Block, get};
                Self {
                    $($field: {
                        let value = 0;
                        $(let value = value << ($width % 64) | get(bytes, $byte, $skip, $width);)+
                        <$fty as Bits>::from_bits(value)
                    },)*
                    $($block: <$bty as Block>::read(&bytes[$at..]),)*
                }
            }

            fn write(&self, bytes: &mut [u8]) {
                use $crate::cm::layout::{Bits, Block, set};
                $({
                    let value = Bits::bits(self.$field);
                    let below = 0 $(+ $width)+;
                    $(
                        let below = below - $width;
                        set(bytes, $byte, $skip, $width, value >> below);
                    )+
                })*
                $(Block::write(&self.$block, &mut bytes[$at..]);)*
            }
        }
    };
}
pub(super) use layout;

/// Generates a CM message. Row offsets count from the start of the message body, as in the tables of IBA 12.
macro_rules! message {
    (
        $(#[$meta:meta])*
        $name:ident = $attribute:literal
        bits {$($(#[doc = $fdoc:literal])* $field:ident: $fty:ty =
            [$(($byte:literal, $skip:literal, $width:literal)),+];)*}
        blocks {$($(#[doc = $bdoc:literal])* $block:ident: $bty:ty = $at:literal;)*}
    ) => {
        $crate::cm::layout::layout! {
            $(#[$meta])*
            $name
            bits {
                /// Transaction id. A reply repeats it; messages are matched by communication ids instead.
                tid: u64 = [(8, 0, 64)];
                /// Attribute modifier: options of Enhanced Connection Establishment, normally 0.
                attribute_modifier: u32 = [(20, 0, 32)];
                $($(#[doc = $fdoc])* $field: $fty =
                    [$(($crate::mad::MadHeader::LEN + $byte, $skip, $width)),+];)*
            }
            blocks {$($(#[doc = $bdoc])* $block: $bty = $crate::mad::MadHeader::LEN + $at;)*}
        }

        impl $name {
            /// Attribute id of this message in the MAD header.
            pub const ATTRIBUTE: u16 = $attribute;

            /// Decodes the message body. The attribute id of the header is not checked;
            /// [`CmMessage::parse`](crate::cm::CmMessage::parse) does that.
            #[must_use]
            pub fn parse(mad: &[u8; $crate::mad::MAD_LEN]) -> Self {
                $crate::cm::layout::Block::read(mad)
            }

            /// Encodes the whole MAD with its header. Reserved bits become zero; values wider than their
            /// field are cut.
            pub fn emit(&self, mad: &mut [u8; $crate::mad::MAD_LEN]) {
                use $crate::mad::MadHeader;
                mad.fill(0);
                if let Some(header) = mad.first_chunk_mut::<{ MadHeader::LEN }>() {
                    MadHeader::cm(Self::ATTRIBUTE, self.tid, self.attribute_modifier).emit(header);
                }
                $crate::cm::layout::Block::write(self, mad);
            }
        }

        /// Every field is zero, the P_Key too. Use it with `..Default::default()`.
        impl Default for $name {
            fn default() -> Self {
                Self::parse(&[0; $crate::mad::MAD_LEN])
            }
        }
    };
}
pub(super) use message;
