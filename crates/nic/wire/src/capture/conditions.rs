//! Conditions on the transport headers of a packet. A packet tap applies them before it copies, to copy fewer
//! packets.

use core::fmt;

use crate::aeth::Syndrome;
use crate::bth::Bth;
use crate::opcode::{Opcode, Operation};
use crate::packet::Packet;
use crate::psn::{Psn, Qpn};

/// A conjunction of conditions on a packet. The default has no condition and admits every packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Conditions {
    /// Admit these opcodes only. The empty set admits every opcode.
    pub opcodes: OpcodeSet,
    /// Admit only packet sequence numbers in this range.
    pub psns: Option<PsnRange>,
    /// Admit only NAKs and RNR NAKs.
    pub naks: bool,
    /// Admit only congestion notification packets (CNP) and packets that a router marked (ECN 3).
    pub congestion: bool,
    /// Admit only packets that report or show an error.
    pub errors: bool,
}

impl Conditions {
    /// Returns whether there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a packet may satisfy the conditions, judged by its headers. `len` is the length from
    /// BTH to ICRC in bytes, `front` the part at hand, `ecn` the low two bits of the IP traffic class.
    ///
    /// The result may be `true` for a packet that does not satisfy them: for `errors`, every management
    /// datagram is admitted because it may be a reject. A packet with a wrong ICRC is not found, because the
    /// ICRC is not computed.
    #[must_use]
    pub fn may_admit(&self, front: &[u8], len: usize, ecn: u8) -> bool {
        let bth = front.first_chunk().map(Bth::parse);
        let packet = Packet::parse_cut(front, len);
        self.admits(bth.as_ref(), packet.as_ref().ok(), ecn)
            && (!self.errors
                || packet.as_ref().map_or(true, is_nak)
                || bth.is_some_and(|bth| bth.dest_qp == Qpn::GSI))
    }

    /// Returns whether a packet satisfies all conditions except `errors`. `packet` is the decoded packet and
    /// `bth` its base header, `None` if they could not be decoded. `ecn` is as in [`Conditions::may_admit`].
    #[must_use]
    pub fn admits(&self, bth: Option<&Bth>, packet: Option<&Packet<'_>>, ecn: u8) -> bool {
        let is_cnp = |packet: &Packet<'_>| packet.row().operation == Operation::Cnp;
        (self.opcodes.is_empty() || bth.is_some_and(|bth| self.opcodes.contains(bth.opcode)))
            && self.psns.is_none_or(|range| bth.is_some_and(|bth| range.contains(bth.psn)))
            && (!self.naks || packet.is_some_and(is_nak))
            && (!self.congestion || ecn == 3 || packet.is_some_and(is_cnp))
    }
}

/// Returns whether a packet is a NAK or an RNR NAK.
#[must_use]
pub fn is_nak(packet: &Packet<'_>) -> bool {
    let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
    matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_) | Syndrome::Reserved(_)))
}

/// A set of opcodes: bit `opcode % 64` of word `opcode / 64`.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct OpcodeSet(pub [u64; 4]);

impl OpcodeSet {
    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Returns whether the set contains `opcode`.
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

/// A range of packet sequence numbers on the circle of 2^24. Both ends are included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PsnRange {
    /// First number of the range.
    pub first: Psn,
    /// Last number of the range; may be numerically below `first`.
    pub last: Psn,
}

impl PsnRange {
    /// Returns whether the range contains `psn`.
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

    /// Returns a packet without payload. Every byte of its extension headers is `fill`.
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
    fn a_packet_is_admitted_only_if_each_condition_holds() {
        let write = packet(Opcode::RC_WRITE_ONLY, Qpn::new(17), 5, 0);
        let opcodes = OpcodeSet::from_iter([Opcode::RC_WRITE_ONLY, Opcode(0xff)]);
        let range = |first, last| Some(PsnRange { first: Psn::new(first), last: Psn::new(last) });
        let both = Conditions { opcodes, psns: range(5, 9), ..Conditions::default() };
        assert!(admits(Conditions::default(), &write) && admits(both, &write));
        assert!(!admits(Conditions { psns: range(6, 4), ..both }, &write));
        assert!(!admits(both, &packet(Opcode::RC_SEND_ONLY, Qpn::new(17), 5, 0)));
        assert!(!admits(both, &write[..11]), "without a BTH no condition holds");
        assert!(Conditions::default().is_empty() && !both.is_empty());
    }

    #[test]
    fn naks_congestion_marks_and_malformed_packets_are_selected() {
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
        assert!(!errors.may_admit(&send[..14], send.len(), 0), "a cut capture is no error of the packet");
        assert!(
            admits(errors, &packet(Opcode::UD_SEND_ONLY, Qpn::GSI, 0, 0)),
            "a management datagram may be a reject"
        );
    }
}
