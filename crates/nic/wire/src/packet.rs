//! A RoCEv2 packet: the payload of a UDP datagram (IBA 9.2, Annex A17).
//!
//! ```text
//! | BTH 12 | extension headers | payload | pad 0..3 | ICRC 4 |
//! ```
//!
//! [`Packet::parse`] is the only place that checks lengths. After it, headers, pad and ICRC are known to fit,
//! and the accessors load from offsets in the opcode's row.

use core::fmt;

use crate::aeth::Aeth;
use crate::atomic::{AtomicAckEth, AtomicEth};
use crate::bth::Bth;
use crate::deth::Deth;
use crate::drop::DropReason;
use crate::feth::Feth;
use crate::icrc::ICRC_LEN;
use crate::ieth::Ieth;
use crate::imm::ImmDt;
use crate::keys::{PKey, QKey, Rkey};
use crate::mad::MAD_LEN;
use crate::opcode::{ExtHeader, OpcodeRow, Operation, Service};
use crate::rdeth::Rdeth;
use crate::reth::Reth;
use crate::xrceth::Xrceth;

/// A decoded packet, borrowed from the received bytes.
///
/// ```
/// use roxie_wire::{DropReason, Packet, Syndrome};
///
/// // An acknowledgement of PSN 4 to QP 17: BTH, AETH and ICRC, which `parse` does not check.
/// let ack = [0x11, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 4, 0x1f, 0, 0, 2, 0, 0, 0, 0];
/// let packet = Packet::parse(&ack)?;
/// assert_eq!(packet.bth.psn.value(), 4);
/// assert_eq!(packet.aeth().unwrap().syndrome, Syndrome::ACK);
/// assert_eq!(packet.reth(), None);
///
/// assert_eq!(Packet::parse(&ack[..15]).unwrap_err(), DropReason::TooShort);
/// # Ok::<(), DropReason>(())
/// ```
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    row: &'static OpcodeRow,
    /// The bytes from the BTH to the ICRC.
    bytes: &'a [u8],
    payload: &'a [u8],
    icrc: u32,
}

impl<'a> Packet<'a> {
    /// Checks the version, the opcode and all lengths. It does not check the ICRC (see [`crate::icrc`]) or
    /// whether the payload length suits the opcode, which the transport checks.
    ///
    /// # Errors
    /// [`DropReason::TooShort`], [`DropReason::UnknownOpcode`] or [`DropReason::BadTver`].
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, DropReason> {
        let (rest, icrc) = udp_payload.split_last_chunk::<ICRC_LEN>().ok_or(DropReason::TooShort)?;
        let bth = Bth::parse(rest.first_chunk().ok_or(DropReason::TooShort)?);
        let row = bth.opcode.row().ok_or(DropReason::UnknownOpcode)?;
        if bth.tver != 0 {
            return Err(DropReason::BadTver);
        }
        let padded = rest.get(row.header_len()..).ok_or(DropReason::TooShort)?;
        let payload_len = padded.len().checked_sub(usize::from(bth.pad_cnt)).ok_or(DropReason::TooShort)?;
        let payload = padded.get(..payload_len).ok_or(DropReason::TooShort)?;
        Ok(Self { bth, row, bytes: udp_payload, payload, icrc: u32::from_le_bytes(*icrc) })
    }

    /// As [`Packet::parse`], for a packet with a pad count that is larger than its payload, which then is
    /// empty.
    fn parse_overpadded(udp_payload: &'a [u8]) -> Option<Self> {
        let (rest, icrc) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
        let bth = Bth::parse(rest.first_chunk()?);
        let row = bth.opcode.row()?;
        let padded = rest.get(row.header_len()..)?;
        let payload = padded.get(..0).filter(|_| padded.len() < usize::from(bth.pad_cnt))?;
        Some(Self { bth, row, bytes: udp_payload, payload, icrc: u32::from_le_bytes(*icrc) })
    }

    /// Decodes the front of a captured datagram that was `len` bytes long. Headers beyond the captured part
    /// are absent, the payload is the captured part of it, and the ICRC is 0 if it was not captured. A pad
    /// count that is larger than the payload leaves no payload: requesters accept such ACKs.
    ///
    /// # Errors
    /// As [`Packet::parse`]; also [`DropReason::TooShort`] if the BTH is incomplete.
    #[inline]
    pub fn parse_cut(captured: &'a [u8], len: usize) -> Result<Self, DropReason> {
        if captured.len() >= len {
            let whole = captured.get(..len).unwrap_or(captured);
            return match Self::parse(whole) {
                Err(DropReason::TooShort) => Self::parse_overpadded(whole).ok_or(DropReason::TooShort),
                parsed => parsed,
            };
        }
        let bth = Bth::parse(captured.first_chunk().ok_or(DropReason::TooShort)?);
        let row = bth.opcode.row().ok_or(DropReason::UnknownOpcode)?;
        if bth.tver != 0 {
            return Err(DropReason::BadTver);
        }
        let payload_len = len
            .checked_sub(row.header_len() + ICRC_LEN)
            .ok_or(DropReason::TooShort)?
            .saturating_sub(bth.pad_cnt.into());
        let rest = captured.get(row.header_len()..).unwrap_or_default();
        let payload = rest.get(..payload_len).unwrap_or(rest);
        Ok(Self { bth, row, bytes: captured, payload, icrc: 0 })
    }

    /// Returns the row that describes the opcode.
    #[must_use]
    #[inline]
    pub fn row(&self) -> &'static OpcodeRow {
        self.row
    }

    /// Returns the packet's bytes, from the BTH to the ICRC or to the end of the capture.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the payload without pad.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the management datagram of a packet to QP 1: a UD SEND Only of exactly 256 bytes with the
    /// default P_Key and the Q_Key of QP 1 (rdma-core and kernel agree).
    ///
    /// # Errors
    /// What another packet is dropped for.
    pub fn mad(&self) -> Result<&'a [u8; MAD_LEN], DropReason> {
        let deth = self.deth().ok_or(DropReason::WrongService)?;
        if self.row.service != Service::Ud || self.row.operation != Operation::Send {
            return Err(DropReason::WrongService);
        }
        if !self.bth.p_key.matches(PKey::DEFAULT) {
            return Err(DropReason::BadPKey);
        }
        if deth.q_key != QKey::GSI {
            return Err(DropReason::BadQKey);
        }
        self.payload.try_into().map_err(|_| DropReason::BadMad)
    }

    /// Returns the received ICRC, to compare with [`crate::icrc::IcrcHeader::icrc`].
    #[must_use]
    #[inline]
    pub fn icrc(&self) -> u32 {
        self.icrc
    }

    /// Returns the RETH: memory range of a WRITE, READ request, FLUSH or ATOMIC WRITE.
    #[must_use]
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.header(ExtHeader::Reth).map(Reth::parse)
    }

    /// Returns the DETH: source QP and Q_Key of a datagram.
    #[must_use]
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.header(ExtHeader::Deth).map(Deth::parse)
    }

    /// Returns the AETH: syndrome and MSN of an acknowledgement.
    #[must_use]
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.header(ExtHeader::Aeth).map(Aeth::parse)
    }

    /// Returns the AtomicETH: operands of an atomic request.
    #[must_use]
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.header(ExtHeader::AtomicEth).map(AtomicEth::parse)
    }

    /// Returns the AtomicAckETH: original value in an atomic response.
    #[must_use]
    #[inline]
    pub fn atomic_ack_eth(&self) -> Option<AtomicAckEth> {
        self.header(ExtHeader::AtomicAckEth).map(AtomicAckEth::parse)
    }

    /// Returns the immediate data, in the order in which the application stored it.
    #[must_use]
    #[inline]
    pub fn imm(&self) -> Option<[u8; 4]> {
        self.header(ExtHeader::ImmDt).map(|bytes| ImmDt::parse(bytes).0)
    }

    /// Returns the R_Key that a SEND with Invalidate invalidates.
    #[must_use]
    #[inline]
    pub fn ieth(&self) -> Option<Rkey> {
        self.header(ExtHeader::Ieth).map(|bytes| Ieth::parse(bytes).r_key)
    }

    /// Returns the FETH: requested placement of a FLUSH.
    #[must_use]
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.header(ExtHeader::Feth).map(Feth::parse)
    }

    /// Returns the XRCETH: shared receive queue of an XRC request.
    #[must_use]
    #[inline]
    pub fn xrceth(&self) -> Option<Xrceth> {
        self.header(ExtHeader::Xrceth).map(Xrceth::parse)
    }

    /// Returns the RDETH: end-to-end context of a reliable datagram.
    #[must_use]
    #[inline]
    pub fn rdeth(&self) -> Option<Rdeth> {
        self.header(ExtHeader::Rdeth).map(Rdeth::parse)
    }

    #[inline]
    fn header<const N: usize>(&self, header: ExtHeader) -> Option<&'a [u8; N]> {
        self.bytes.get(self.row.offset(header)?..)?.first_chunk()
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bth)?;
        // The order of these lines is the order of the headers on the wire.
        show(f, self.rdeth())?;
        show(f, self.deth())?;
        show(f, self.xrceth())?;
        show(f, self.feth())?;
        show(f, self.reth())?;
        show(f, self.atomic_eth())?;
        show(f, self.aeth())?;
        show(f, self.atomic_ack_eth())?;
        show(f, self.imm().map(ImmDt))?;
        show(f, self.ieth().map(|r_key| Ieth { r_key }))?;
        if !self.payload.is_empty() {
            write!(f, ", {} bytes", self.payload.len())?;
        }
        Ok(())
    }
}

fn show(f: &mut fmt::Formatter<'_>, header: Option<impl fmt::Display>) -> fmt::Result {
    header.map_or(Ok(()), |header| write!(f, ", {header}"))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;
    use crate::opcode::{OPCODES, Opcode};
    use crate::psn::Qpn;
    use proptest::prelude::*;

    /// Returns a packet with `opcode`. Its extension headers consist of `fill` bytes, `body` zero bytes
    /// follow them.
    fn packet(opcode: Opcode, fill: u8, body: usize, pad_cnt: u8) -> Vec<u8> {
        let mut bytes = [0; Bth::LEN];
        Bth { opcode, pad_cnt, ..Bth::default() }.emit(&mut bytes);
        let header_len = opcode.row().map_or(Bth::LEN, OpcodeRow::header_len);
        let mut out = bytes.to_vec();
        out.resize(header_len, fill);
        out.resize(header_len + body + ICRC_LEN, 0);
        out
    }

    #[test]
    fn a_management_datagram_has_the_keys_of_queue_pair_1() {
        let fault = |opcode, p_key, q_key, len| {
            let mut bytes = packet(opcode, 0, len, 0);
            Bth { opcode, p_key, ..Bth::default() }.emit(bytes.first_chunk_mut().unwrap());
            if bytes.len() > Bth::LEN + Deth::LEN + ICRC_LEN {
                let deth = bytes[Bth::LEN..].first_chunk_mut().unwrap();
                Deth { q_key, src_qp: Qpn::GSI }.emit(deth);
            }
            Packet::parse(&bytes).unwrap().mad().err()
        };
        let (send, other_key) = (Opcode::UD_SEND_ONLY, QKey(0x1111_1111));
        assert_eq!(fault(send, PKey::DEFAULT, QKey::GSI, MAD_LEN), None);
        assert_eq!(fault(send, PKey::DEFAULT, QKey::GSI, MAD_LEN - 4), Some(DropReason::BadMad));
        assert_eq!(fault(send, PKey::DEFAULT, other_key, MAD_LEN), Some(DropReason::BadQKey));
        assert_eq!(fault(send, PKey(1), QKey::GSI, MAD_LEN), Some(DropReason::BadPKey));
        let rc = Opcode::RC_SEND_ONLY;
        assert_eq!(fault(rc, PKey::DEFAULT, QKey::GSI, MAD_LEN), Some(DropReason::WrongService));
    }

    #[test]
    fn every_opcode_has_exactly_the_headers_of_its_row() {
        for row in OPCODES.iter().flatten() {
            let bytes = packet(row.opcode, 1, 8, 0);
            let packet = Packet::parse(&bytes).unwrap();
            let shown = [
                (ExtHeader::Rdeth, packet.rdeth().is_some()),
                (ExtHeader::Deth, packet.deth().is_some()),
                (ExtHeader::Xrceth, packet.xrceth().is_some()),
                (ExtHeader::Feth, packet.feth().is_some()),
                (ExtHeader::Reth, packet.reth().is_some()),
                (ExtHeader::AtomicEth, packet.atomic_eth().is_some()),
                (ExtHeader::Aeth, packet.aeth().is_some()),
                (ExtHeader::AtomicAckEth, packet.atomic_ack_eth().is_some()),
                (ExtHeader::ImmDt, packet.imm().is_some()),
                (ExtHeader::Ieth, packet.ieth().is_some()),
            ];
            for (header, shown) in shown {
                assert_eq!(shown, row.headers.contains(&header), "{} {header}", row.name);
            }
            assert_eq!(packet.payload(), [0; 8], "{}", row.name);
            assert_eq!(packet.row(), row);
        }
    }

    #[test]
    fn every_opcode_needs_all_its_headers_its_pad_and_the_icrc() {
        for row in OPCODES.iter().flatten() {
            let bytes = packet(row.opcode, 1, 0, 0);
            assert!(Packet::parse(&bytes).unwrap().payload().is_empty());
            for len in 0..bytes.len() {
                assert_eq!(
                    Packet::parse(&bytes[..len]).err(),
                    Some(DropReason::TooShort),
                    "{} {len}",
                    row.name
                );
            }
            let bytes = packet(row.opcode, 1, 3, 3);
            assert!(Packet::parse(&bytes).unwrap().payload().is_empty());
            let bytes = packet(row.opcode, 1, 2, 3);
            assert_eq!(Packet::parse(&bytes).err(), Some(DropReason::TooShort), "{}", row.name);
        }
    }

    #[test]
    fn unknown_opcodes_and_versions_are_refused() {
        assert_eq!(Packet::parse(&packet(Opcode(0x15), 0, 64, 0)).err(), Some(DropReason::UnknownOpcode));
        assert_eq!(Packet::parse(&packet(Opcode(0xff), 0, 64, 0)).err(), Some(DropReason::UnknownOpcode));
        let mut bytes = packet(Opcode::RC_SEND_ONLY, 0, 64, 0);
        bytes[1] |= 1;
        assert_eq!(Packet::parse(&bytes).err(), Some(DropReason::BadTver));
    }

    #[test]
    fn headers_are_displayed_in_wire_order() {
        let bytes = packet(Opcode::RC_WRITE_ONLY_IMM, 0, 4, 2);
        assert_eq!(
            Packet::parse(&bytes).unwrap().to_string(),
            "RC RDMA WRITE Only Immediate QP=0x000000 PSN=0 Pad=2, \
             RETH VA=0x0000000000000000 R_Key=0x00000000 DMALen=0, ImmDt 0x00000000, 2 bytes"
        );
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(packet) = Packet::parse(&bytes) {
                let headers = packet.row().header_len();
                let pad = usize::from(packet.bth.pad_cnt);
                prop_assert_eq!(headers + packet.payload().len() + pad + ICRC_LEN, bytes.len());
                prop_assert!(!packet.to_string().is_empty());
            }
        }
    }
}
