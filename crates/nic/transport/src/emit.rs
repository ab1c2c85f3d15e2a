//! Writes packets: headers at the front of a transmit buffer, payload directly behind them, pad at the end.

use wire::{Aeth, Bth, Msn, Opcode, PKey, Psn, Syndrome};

use crate::attr::MAX_PACKET;
#[cfg(doc)]
use crate::attr::QpType;
use crate::endpoint::Endpoint;
use crate::wr::{AddressVector, UdDest, WrOp};

/// Traffic class of CNPs: DSCP 48 (CS6), as hardware sends them (mlx5: `np_cnp_dscp`); not ECN-capable.
const CNP_TRAFFIC_CLASS: u8 = 48 << 2;

/// A buffer that every packet fits in.
pub(crate) type Buffer = [u8; MAX_PACKET];

/// A packet that was written to the owner's buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// Bytes from the BTH to the pad; the owner appends the ICRC.
    pub len: usize,
    /// It goes to [`Qp::datagram_dest`](crate::Qp::datagram_dest) instead of the path of the connection: a
    /// datagram, or a congestion notification, which has another traffic class. The destination is not in
    /// this struct because a store followed by a load of another size would stall the processor
    /// (docs/laboratory.md).
    pub is_datagram: bool,
}

/// A packet being written.
pub(crate) struct Emitter<'a> {
    buf: &'a mut Buffer,
    len: usize,
}

impl<'a> Emitter<'a> {
    /// Starts a packet behind the space for the BTH.
    #[inline]
    pub(crate) fn new(buf: &'a mut Buffer) -> Self {
        Self { buf, len: Bth::LEN }
    }

    /// The next `N` bytes, for a header.
    #[inline]
    pub(crate) fn header<const N: usize>(&mut self) -> &mut [u8; N] {
        let at = self.len;
        self.len += N;
        // The longest header list is 40 bytes, the buffer 64 bytes longer than the longest payload.
        self.buf[at..].first_chunk_mut().expect("headers fit")
    }

    /// The next `len` bytes, for the payload; at most 4096.
    #[inline]
    pub(crate) fn payload(&mut self, len: usize) -> &mut [u8] {
        let at = self.len;
        self.len += len;
        &mut self.buf[at..at + len]
    }

    /// Pads with zeros, writes the BTH in front and returns the length of the packet.
    #[inline]
    pub(crate) fn finish(self, mut bth: Bth) -> usize {
        let padded = self.len.next_multiple_of(4);
        bth.pad_cnt = (padded - self.len) as u8;
        self.buf[self.len..padded].fill(0);
        bth.emit(self.buf.first_chunk_mut().expect("headers fit"));
        padded
    }
}

/// The PSN of the packet with this number.
#[inline]
pub(crate) fn psn_of(position: u64) -> Psn {
    Psn::new(position as u32)
}

/// Writes an acknowledge packet: ACK, NAK or RNR NAK.
pub(crate) fn acknowledge(buf: &mut Buffer, ep: &Endpoint, syndrome: Syndrome, psn: Psn, msn: Msn) -> usize {
    let mut packet = Emitter::new(buf);
    Aeth { syndrome, msn }.emit(packet.header());
    packet.finish(response_bth(Opcode::RC_ACKNOWLEDGE, ep, psn))
}

/// Writes a congestion notification packet (Annex A17.9): BECN is set, and 16 reserved bytes follow.
pub(crate) fn congestion_notification(buf: &mut Buffer, ep: &mut Endpoint) -> Transmit {
    let mut packet = Emitter::new(buf);
    *packet.header::<16>() = [0; 16];
    let dest_qp = ep.attr.dest_qp;
    let bth = Bth { opcode: Opcode::CNP, dest_qp, becn: true, p_key: PKey::DEFAULT, ..Bth::default() };
    let len = packet.finish(bth);
    let av = AddressVector { traffic_class: CNP_TRAFFIC_CLASS, ..ep.attr.av };
    ep.datagram_dest = UdDest { av, remote_qpn: dest_qp, ..UdDest::default() };
    Transmit { len, is_datagram: true }
}

/// The BTH of a response, by its opcode on RC: no AckReq, no SE.
#[inline]
pub(crate) fn response_bth(rc: Opcode, ep: &Endpoint, psn: Psn) -> Bth {
    let (opcode, dest_qp) = (ep.ty.opcode(rc), ep.attr.dest_qp);
    Bth { opcode, dest_qp, psn, p_key: PKey::DEFAULT, ..Bth::default() }
}

/// The RC opcode of a packet of a SEND or WRITE; see [`QpType::opcode`].
#[inline]
pub(crate) fn rc_opcode(op: &WrOp, starts: bool, ends: bool) -> Opcode {
    match (op, starts, ends) {
        (WrOp::Write { .. } | WrOp::WriteImm { .. }, true, false) => Opcode::RC_WRITE_FIRST,
        (WrOp::Write { .. } | WrOp::WriteImm { .. }, false, false) => Opcode::RC_WRITE_MIDDLE,
        (WrOp::Write { .. }, false, true) => Opcode::RC_WRITE_LAST,
        (WrOp::Write { .. }, true, true) => Opcode::RC_WRITE_ONLY,
        (WrOp::WriteImm { .. }, false, true) => Opcode::RC_WRITE_LAST_IMM,
        (WrOp::WriteImm { .. }, true, true) => Opcode::RC_WRITE_ONLY_IMM,
        (WrOp::Read { .. }, _, _) => Opcode::RC_READ_REQUEST,
        (WrOp::CompareSwap { .. }, _, _) => Opcode::RC_COMPARE_SWAP,
        (WrOp::FetchAdd { .. }, _, _) => Opcode::RC_FETCH_ADD,
        (WrOp::AtomicWrite { .. }, _, _) => Opcode::RC_ATOMIC_WRITE,
        (WrOp::Flush { .. }, _, _) => Opcode::RC_FLUSH,
        (WrOp::SendImm(_), false, true) => Opcode::RC_SEND_LAST_IMM,
        (WrOp::SendImm(_), true, true) => Opcode::RC_SEND_ONLY_IMM,
        (WrOp::SendInv(_), false, true) => Opcode::RC_SEND_LAST_INV,
        (WrOp::SendInv(_), true, true) => Opcode::RC_SEND_ONLY_INV,
        (_, true, false) => Opcode::RC_SEND_FIRST,
        (_, false, false) => Opcode::RC_SEND_MIDDLE,
        (_, false, true) => Opcode::RC_SEND_LAST,
        (_, true, true) => Opcode::RC_SEND_ONLY,
    }
}

/// The opcode of a READ response.
#[inline]
pub(crate) fn read_response_opcode(starts: bool, ends: bool) -> Opcode {
    match (starts, ends) {
        (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
        (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
        (false, true) => Opcode::RC_READ_RESPONSE_LAST,
        (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Rkey;

    /// The opcode table says which operation and position an opcode has.
    #[test]
    fn every_opcode_matches_its_row_of_the_table() {
        use wire::{Operation, Position};
        let r_key = Rkey(0);
        let ops = [
            (WrOp::Send, Operation::Send),
            (WrOp::SendImm([0; 4]), Operation::SendImm),
            (WrOp::SendInv(r_key), Operation::SendInv),
            (WrOp::Write { remote_addr: 0, r_key }, Operation::Write),
            (WrOp::WriteImm { remote_addr: 0, r_key, imm: [0; 4] }, Operation::WriteImm),
        ];
        for (op, operation) in ops {
            for (starts, ends, position) in
                [(true, true, Position::Only), (true, false, Position::First), (false, true, Position::Last)]
            {
                let row = rc_opcode(&op, starts, ends).row().unwrap();
                assert_eq!(row.position, position);
                if ends {
                    assert_eq!(row.operation, operation);
                }
                let on_uc = Opcode(row.opcode.0 | 0x20);
                assert_eq!(on_uc.row().is_none(), operation == Operation::SendInv && ends);
            }
            assert_eq!(rc_opcode(&op, false, false).row().unwrap().position, Position::Middle);
        }
    }
}
