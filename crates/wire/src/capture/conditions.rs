//! What an onlooker may ask of a packet's transport headers, so that whoever copies packets copies fewer.

use core::fmt;

use crate::aeth::Syndrome;
use crate::bth::Bth;
use crate::opcode::{Opcode, Operation};
use crate::packet::Packet;
use crate::psn::{Psn, Qpn};

/// Conditions on packets; each that is given must hold. The default is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Conditions {
    /// Only these opcodes, if there are any.
    pub opcodes: OpcodeSet,
    /// Only packet sequence numbers in this range.
    pub psns: Option<PsnRange>,
    /// Only NAKs, RNR NAKs included.
    pub naks: bool,
    /// Only congestion notifications, and packets that a router marked.
    pub congestion: bool,
    /// Only what went wrong.
    pub errors: bool,
}

impl Conditions {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a packet of `len` bytes, BTH to ICRC, may be wanted. `front` is what there is of it, `ecn` the low two bits of the
    /// IP header's traffic class. What takes more than headers is not looked at: of what went wrong, every management datagram
    /// may be wanted, since it may be a refusal, and no packet because of its ICRC.
    #[must_use]
    pub fn may_admit(&self, front: &[u8], len: usize, ecn: u8) -> bool {
        let bth = front.first_chunk().map(Bth::parse);
        let packet = Packet::parse_cut(front, len);
        self.admits(bth.as_ref(), packet.as_ref().ok(), ecn)
            && (!self.errors
                || packet.as_ref().map_or(true, is_nak)
                || bth.is_some_and(|bth| bth.dest_qp == Qpn::GSI))
    }

    /// Whether a packet is wanted for its opcode, its number, as a NAK and as a sign of congestion; what went wrong is not asked.
    /// `packet` if it makes sense, `bth` if there is one, `ecn` as above.
    #[must_use]
    pub fn admits(&self, bth: Option<&Bth>, packet: Option<&Packet<'_>>, ecn: u8) -> bool {
        let is_cnp = |packet: &Packet<'_>| packet.row().operation == Operation::Cnp;
        (self.opcodes.is_empty() || bth.is_some_and(|bth| self.opcodes.contains(bth.opcode)))
            && self.psns.is_none_or(|range| bth.is_some_and(|bth| range.contains(bth.psn)))
            && (!self.naks || packet.is_some_and(is_nak))
            && (!self.congestion || ecn == 3 || packet.is_some_and(is_cnp))
    }
}

/// Whether a packet says that a request was not done.
#[must_use]
pub fn is_nak(packet: &Packet<'_>) -> bool {
    let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
    matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_) | Syndrome::Reserved(_)))
}

/// A set of opcodes.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct OpcodeSet(pub [u64; 4]);

impl OpcodeSet {
    /// Whether none is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Whether it has this one.
    #[must_use]
    pub fn contains(&self, opcode: Opcode) -> bool {
        self.0[usize::from(opcode.0 >> 6)] >> (opcode.0 & 63) & 1 != 0
    }
}

impl FromIterator<Opcode> for OpcodeSet {
    fn from_iter<I: IntoIterator<Item = Opcode>>(opcodes: I) -> Self {
        let mut set = Self::default();
        for Opcode(byte) in opcodes {
            set.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
        set
    }
}

impl fmt::Debug for OpcodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..=255).map(Opcode).filter(|opcode| self.contains(*opcode))).finish()
    }
}

/// Packet sequence numbers from `first` to `last`, both included, around the circle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PsnRange {
    /// Where it begins.
    pub first: Psn,
    /// Where it ends.
    pub last: Psn,
}

impl PsnRange {
    /// Whether it has this number.
    #[must_use]
    pub fn contains(self, psn: Psn) -> bool {
        let from_first = |psn: Psn| psn.value().wrapping_sub(self.first.value()) & 0xff_ffff;
        from_first(psn) <= from_first(self.last)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::aeth::Aeth;
    use crate::icrc::ICRC_LEN;

    /// A packet with nothing behind its extension headers, which are `fill`.
    fn packet(opcode: Opcode, dest_qp: Qpn, psn: u32, fill: u8) -> Vec<u8> {
        let mut bytes = [0; Bth::LEN];
        Bth { opcode, dest_qp, psn: Psn::new(psn), ..Bth::default() }.emit(&mut bytes);
        let mut out = bytes.to_vec();
        out.resize(opcode.row().map_or(Bth::LEN, |row| row.header_len()) + ICRC_LEN, fill);
        out
    }

    fn admits(conditions: Conditions, bytes: &[u8]) -> bool {
        conditions.may_admit(bytes, bytes.len(), 0)
    }

    #[test]
    fn each_condition_must_hold() {
        let write = packet(Opcode::RC_WRITE_ONLY, Qpn::new(17), 5, 0);
        let opcodes = OpcodeSet::from_iter([Opcode::RC_WRITE_ONLY, Opcode(0xff)]);
        let range = |first, last| Some(PsnRange { first: Psn::new(first), last: Psn::new(last) });
        let both = Conditions { opcodes, psns: range(5, 9), ..Conditions::default() };
        assert!(admits(Conditions::default(), &write) && admits(both, &write));
        assert!(!admits(Conditions { psns: range(6, 4), ..both }, &write));
        assert!(!admits(both, &packet(Opcode::RC_SEND_ONLY, Qpn::new(17), 5, 0)));
        assert!(!admits(both, &write[..11]), "nothing is known of it");
        assert!(Conditions::default().is_empty() && !both.is_empty());
    }

    #[test]
    fn naks_marks_and_what_makes_no_sense() {
        let naks = Conditions { naks: true, ..Conditions::default() };
        let congestion = Conditions { congestion: true, ..Conditions::default() };
        let errors = Conditions { errors: true, ..Conditions::default() };
        let qp = Qpn::new(17);
        let ack = |syndrome| {
            let mut bytes = packet(Opcode::RC_ACKNOWLEDGE, qp, 0, 0);
            let aeth = bytes[Bth::LEN..].first_chunk_mut::<{ Aeth::LEN }>().unwrap();
            aeth[0] = syndrome;
            bytes
        };
        for (syndrome, refuses) in [(0, false), (0x1f, false), (0x20, true), (0x62, true), (0x80, true)] {
            assert_eq!(admits(naks, &ack(syndrome)), refuses, "{syndrome:#x}");
            assert_eq!(admits(errors, &ack(syndrome)), refuses, "{syndrome:#x}");
        }
        let send = packet(Opcode::RC_SEND_ONLY, qp, 0, 0);
        assert!(!admits(naks, &send) && !admits(errors, &send) && !admits(congestion, &send));
        assert!(congestion.may_admit(&send, send.len(), 3) && !congestion.may_admit(&send, send.len(), 1));
        assert!(admits(congestion, &packet(Opcode::CNP, qp, 0, 0)));
        assert!(admits(errors, &packet(Opcode(0x15), qp, 0, 0)), "unknown");
        assert!(admits(errors, &send[..send.len() - 1]), "too short");
        assert!(!errors.may_admit(&send[..14], send.len(), 0), "cut by whoever looks");
        assert!(admits(errors, &packet(Opcode::UD_SEND_ONLY, Qpn::GSI, 0, 0)), "perhaps a refusal");
    }
}
