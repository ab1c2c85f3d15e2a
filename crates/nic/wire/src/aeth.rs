//! ACK extended transport header (AETH), and the tables of its syndrome values (IBA 9.5.1, 9.7.5).
//!
//! ```text
//! |   syndrome    |                     msn                       |
//! ```

use core::fmt;

use crate::bytes::{put_u24, u24_at};
use crate::psn::Msn;

/// ACK extended transport header (IBA 9.5.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aeth {
    /// Whether the responder acknowledges or refuses, with the reason.
    pub syndrome: Syndrome,
    /// Message sequence number: requests that the responder has completed, modulo 2^24.
    pub msn: Msn,
}

impl Aeth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { syndrome: Syndrome::from_byte(bytes[0]), msn: Msn::new(u24_at(bytes, 1)) }
    }

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[0] = self.syndrome.byte();
        put_u24(bytes, 1, self.msn.value());
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AETH {} MSN={}", self.syndrome, self.msn)
    }
}

/// The first byte of the AETH: acknowledgement, RNR NAK or NAK (IBA table 44).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Syndrome {
    /// Acknowledgement with a credit code 0..=31, see [`credits_of_code`]. Code 31 means that credits are not
    /// in use.
    Ack(u8),
    /// Receiver not ready, with a timer code 0..=31, see [`rnr_timer_ns`].
    RnrNak(u8),
    /// Negative acknowledgement. It ends the request unless it reports a PSN sequence error.
    Nak(NakCode),
    /// A reserved value. The requester ignores a packet that carries it.
    Reserved(u8),
}

impl Syndrome {
    /// An acknowledgement without credits. A responder with a shared receive queue sends no other.
    pub const ACK: Self = Self::Ack(NO_CREDITS);

    /// Decodes the byte. Every value has exactly one meaning.
    #[must_use]
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            0x00..=0x1f => Self::Ack(byte),
            0x20..=0x3f => Self::RnrNak(byte & 0x1f),
            0x60 => Self::Nak(NakCode::PsnSequenceError),
            0x61 => Self::Nak(NakCode::InvalidRequest),
            0x62 => Self::Nak(NakCode::RemoteAccessError),
            0x63 => Self::Nak(NakCode::RemoteOperationalError),
            0x64 => Self::Nak(NakCode::InvalidRdRequest),
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the byte. Codes are cut to 5 bits.
    #[must_use]
    #[inline]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ack(NO_CREDITS) => f.write_str("ACK"),
            Self::Ack(code) => write!(f, "ACK Credits={}", credits_of_code(code).unwrap_or(0)),
            Self::RnrNak(timer) => {
                let us = rnr_timer_ns(timer) / 1000;
                write!(f, "RNR NAK Timer={}.{:02} ms", us / 1000, us % 1000 / 10)
            }
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(byte) => write!(f, "Reserved ({byte:#04x})"),
        }
    }
}

/// Reason of a NAK (IBA 9.7.5.2). The value is the low five bits of the syndrome.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum NakCode {
    /// A request packet is missing. The requester retransmits from the PSN of the NAK on.
    PsnSequenceError = 0,
    /// The request is invalid: wrong opcode order, wrong length or unsupported operation.
    InvalidRequest = 1,
    /// The key, the address range or the permission is wrong.
    RemoteAccessError = 2,
    /// The responder failed for a reason of its own.
    RemoteOperationalError = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequenceError => "PSN sequence error",
            Self::InvalidRequest => "Invalid request",
            Self::RemoteAccessError => "Remote access error",
            Self::RemoteOperationalError => "Remote operational error",
            Self::InvalidRdRequest => "Invalid RD request",
        })
    }
}

/// The credit code of an ACK that reports no credits.
pub const NO_CREDITS: u8 = 31;

/// Returns the number of receives that the responder has posted, for credit codes 0..=30 (IBA table 45).
/// Returns `None` for code 31 and above.
#[must_use]
pub const fn credits_of_code(code: u8) -> Option<u32> {
    if code < NO_CREDITS { Some(CREDITS[code as usize]) } else { None }
}

/// Returns the time that the requester waits after an RNR NAK, in nanoseconds (IBA table 46). `min_rnr_timer`
/// uses the same codes. Only the low five bits of `code` count; code 0 is the longest time, 655.36 ms.
#[must_use]
pub const fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[(code & 0x1f) as usize] as u64 * 10_000
}

/// IBA table 45.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// IBA table 46, in units of 0.01 ms.
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; Aeth::LEN], |bytes| {
            let mut out = [0; Aeth::LEN];
            Aeth::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn every_syndrome_byte_decodes_and_encodes() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::from_byte(0x2c), Syndrome::RnrNak(12));
        assert_eq!(Syndrome::from_byte(0x62), Syndrome::Nak(NakCode::RemoteAccessError));
        assert_eq!(Syndrome::from_byte(0x40), Syndrome::Reserved(0x40));
        assert_eq!(Syndrome::from_byte(0x65), Syndrome::Reserved(0x65));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    /// The series 1, 2, 3, 4, 6, 8, 12, ...: powers of two and the numbers halfway between them.
    fn halfway_series(n: u32) -> u32 {
        match n {
            1 => 1,
            n if n % 2 == 0 => 1 << (n / 2),
            n => 3 << ((n - 3) / 2),
        }
    }

    #[test]
    fn rnr_timers_follow_the_halfway_series() {
        for code in 1..32 {
            assert_eq!(rnr_timer_ns(code as u8), u64::from(halfway_series(code)) * 10_000, "code {code}");
        }
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(12), 640_000);
        assert_eq!(rnr_timer_ns(25), 61_440_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
    }

    #[test]
    fn credit_codes_follow_the_halfway_series() {
        assert_eq!(credits_of_code(0), Some(0));
        for code in 1..31 {
            assert_eq!(credits_of_code(code as u8), Some(halfway_series(code)), "code {code}");
        }
        assert_eq!(credits_of_code(31), None);
    }

    #[test]
    fn a_syndrome_displays_its_kind_and_value() {
        assert_eq!(Syndrome::ACK.to_string(), "ACK");
        assert_eq!(Syndrome::Ack(5).to_string(), "ACK Credits=6");
        assert_eq!(Syndrome::RnrNak(1).to_string(), "RNR NAK Timer=0.01 ms");
        assert_eq!(Syndrome::RnrNak(0).to_string(), "RNR NAK Timer=655.36 ms");
        assert_eq!(Syndrome::Nak(NakCode::InvalidRequest).to_string(), "NAK Invalid request");
    }
}
