//! Makes nearly valid packets: each has the headers of its opcode, with values that the other end might use.

use transport::PathMtu;
use wire::opcode::{ExtHeader, OPCODES, OpcodeRow, Service};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Msn, PKey, Psn, QKey, Qpn, Reth, Rkey, Syndrome,
    Xrceth,
};

use crate::draw::Draw;
use crate::ledger::{QPN, REGIONS};

pub(crate) const Q_KEY: QKey = QKey(0x1122_3344);
const ICRC_LEN: usize = 4;

/// All values that a packet may carry; the opcode decides which are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) solicited: bool,
    pub(crate) reth: Reth,
    pub(crate) atomic: AtomicEth,
    pub(crate) aeth: Aeth,
    pub(crate) original: u64,
    pub(crate) imm: [u8; 4],
    pub(crate) invalidate: Rkey,
    pub(crate) q_key: QKey,
    pub(crate) payload_len: usize,
    /// Added to the correct number of pad bytes, modulo 4.
    pub(crate) pad_error: u8,
    pub(crate) p_key: PKey,
    pub(crate) dest_qp: Qpn,
    pub(crate) srqn: u32,
}

/// Returns the opcodes of a service.
pub(crate) fn rows(service: Service) -> Vec<&'static OpcodeRow> {
    OPCODES.iter().flatten().filter(|row| row.service == service).collect()
}

/// Returns a range that a peer might name: usually inside a region, sometimes at its edge, wrapping, or
/// outside all regions.
pub(crate) fn reth(draw: &mut Draw<'_>, mtu: PathMtu) -> Reth {
    let region = draw.pick(&REGIONS);
    let mtu = mtu.bytes() as u32;
    let dma_len = match draw.below(12) {
        0 => 8,
        1 => 0,
        2 => mtu,
        3 => 2 * mtu,
        4 => 3 * mtu + 1,
        5 => u32::from(draw.any::<u16>()),
        6 => region.len as u32,
        7 => region.len as u32 + 1,
        8 => mtu + 1,
        9 => 1 << 31,
        10 => (1 << 31) + 1,
        _ => draw.any(),
    };
    let va = match draw.below(10) {
        0..=2 => region.base,
        3 => region.base.wrapping_add(draw.any::<u16>().into()),
        4 => region.base.wrapping_add(region.len).wrapping_sub(dma_len.into()),
        5 => region.base.wrapping_add(region.len).wrapping_sub(dma_len.into()).wrapping_add(1),
        6 => region.base.wrapping_sub(1),
        7 => 0_u64.wrapping_sub(dma_len.into()),
        8 => 0_u64.wrapping_sub(u64::from(dma_len) / 2),
        _ => draw.any(),
    };
    Reth { va, r_key: r_key(draw, region.key), dma_len }
}

pub(crate) fn atomic(draw: &mut Draw<'_>) -> AtomicEth {
    let region = draw.pick(&REGIONS);
    let va = match draw.below(6) {
        0..=2 => region.base.next_multiple_of(8),
        3 => region.base.wrapping_add(region.len).wrapping_sub(8) & !7,
        4 => region.base.wrapping_add(draw.any::<u8>().into()),
        _ => draw.any::<u64>() & !7,
    };
    AtomicEth {
        va,
        r_key: r_key(draw, region.key),
        swap_or_add: draw.any(),
        compare: draw.any::<u8>().into(),
    }
}

fn r_key(draw: &mut Draw<'_>, right: Rkey) -> Rkey {
    match draw.below(16) {
        14 => draw.pick(&REGIONS).key,
        15 => Rkey(draw.any()),
        _ => right,
    }
}

pub(crate) fn aeth(draw: &mut Draw<'_>) -> Aeth {
    let byte = match draw.below(8) {
        0..=3 => 0x1f,
        4 => 0x60,
        5 => 0x60 + draw.below(6) as u8,
        6 => 0x20 + draw.below(32) as u8,
        _ => draw.any(),
    };
    Aeth { syndrome: Syndrome::from_byte(byte), msn: Msn::new(draw.any::<u8>().into()) }
}

/// Returns the bytes of a packet, with room for an ICRC that is not checked.
pub(crate) fn packet(row: &OpcodeRow, content: &Content) -> Vec<u8> {
    let pad = (content.payload_len.wrapping_neg() & 3) as u8;
    let pad_cnt = pad.wrapping_add(content.pad_error) & 3;
    let bth = Bth {
        opcode: row.opcode,
        solicited: content.solicited,
        pad_cnt,
        p_key: content.p_key,
        dest_qp: content.dest_qp,
        ack_req: content.ack_req,
        psn: content.psn,
        ..Bth::default()
    };
    let mut bytes = vec![0; row.header_len()];
    bth.emit(bytes.first_chunk_mut().expect("the packet starts with a BTH"));
    for header in row.headers {
        let at = row.offset(*header).expect("the row has the header");
        let rest = &mut bytes[at..];
        match header {
            ExtHeader::Reth => content.reth.emit(rest.first_chunk_mut().expect("fits")),
            ExtHeader::AtomicEth => content.atomic.emit(rest.first_chunk_mut().expect("fits")),
            ExtHeader::Aeth => content.aeth.emit(rest.first_chunk_mut().expect("fits")),
            ExtHeader::AtomicAckEth => {
                AtomicAckEth { original: content.original }.emit(rest.first_chunk_mut().expect("fits"));
            }
            ExtHeader::ImmDt => ImmDt(content.imm).emit(rest.first_chunk_mut().expect("fits")),
            ExtHeader::Ieth => {
                Ieth { r_key: content.invalidate }.emit(rest.first_chunk_mut().expect("fits"));
            }
            ExtHeader::Deth => {
                Deth { q_key: content.q_key, src_qp: QPN }.emit(rest.first_chunk_mut().expect("fits"))
            }
            ExtHeader::Xrceth => {
                Xrceth { srqn: content.srqn & 0xff_ffff }.emit(rest.first_chunk_mut().expect("fits"));
            }
            ExtHeader::Rdeth | ExtHeader::Feth | ExtHeader::CnpReserved => {}
        }
    }
    let first = bytes.len();
    bytes.resize(first + content.payload_len + usize::from(pad_cnt), 0);
    for (i, byte) in bytes[first..].iter_mut().enumerate() {
        *byte = (i as u8) ^ 0x5a;
    }
    bytes.resize(bytes.len() + ICRC_LEN, 0);
    bytes
}
