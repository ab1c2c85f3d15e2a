//! Packets as values: any opcode, any header, any length. The sender adds the ICRC.

use roxie::wire::opcode::ExtHeader;
use roxie::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Msn, Opcode, PKey, Psn, QKey, Qpn, Reth, Rkey,
    Syndrome,
};

/// The fields of all headers; the opcode selects the headers that a packet has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) solicited: bool,
    pub(crate) tver: u8,
    pub(crate) p_key: PKey,
    /// Added to the right pad count, modulo 4.
    pub(crate) pad_error: u8,
    pub(crate) reth: Reth,
    pub(crate) atomic: AtomicEth,
    pub(crate) aeth: Aeth,
    pub(crate) original: u64,
    pub(crate) invalidate: Rkey,
    pub(crate) deth: Deth,
}

impl Fields {
    /// Creates a request with AckReq; all other fields are 0.
    pub(crate) fn new(qpn: Qpn, psn: Psn) -> Self {
        Self {
            qpn,
            psn,
            ack_req: true,
            solicited: false,
            tver: 0,
            p_key: PKey::DEFAULT,
            pad_error: 0,
            reth: Reth { va: 0, r_key: Rkey(0), dma_len: 0 },
            atomic: AtomicEth { va: 0, r_key: Rkey(0), swap_or_add: 0, compare: 0 },
            aeth: Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) },
            original: 0,
            invalidate: Rkey(0),
            deth: Deth { q_key: QKey(0), src_qp: Qpn::new(0x1234) },
        }
    }

    /// Sets the RETH.
    pub(crate) fn at(self, va: u64, r_key: Rkey, dma_len: u32) -> Self {
        Self { reth: Reth { va, r_key, dma_len }, ..self }
    }

    /// Sets the AtomicETH; it adds one.
    pub(crate) fn atomic_at(self, va: u64, r_key: Rkey) -> Self {
        Self { atomic: AtomicEth { va, r_key, swap_or_add: 1, compare: 0 }, ..self }
    }

    /// Sets the syndrome.
    pub(crate) fn with_syndrome(self, syndrome: Syndrome) -> Self {
        Self { aeth: Aeth { syndrome, msn: Msn::new(0) }, ..self }
    }

    /// Returns the bytes from BTH to pad. An unknown opcode has no extended headers.
    pub(crate) fn packet(&self, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        let pad_cnt = (payload.len().wrapping_neg() as u8).wrapping_add(self.pad_error) & 3;
        let bth = Bth {
            opcode,
            solicited: self.solicited,
            pad_cnt,
            tver: self.tver,
            p_key: self.p_key,
            dest_qp: self.qpn,
            ack_req: self.ack_req,
            psn: self.psn,
            ..Bth::default()
        };
        let mut out = [0; Bth::LEN].to_vec();
        bth.emit(out.first_chunk_mut().expect("a BTH is in front"));
        for header in opcode.row().map_or(&[][..], |row| row.headers) {
            let at = out.len();
            out.resize(at + header.len_bytes(), 0);
            self.emit(*header, &mut out[at..]);
        }
        out.extend_from_slice(payload);
        out.resize(out.len() + usize::from(pad_cnt), 0);
        out
    }

    fn emit(&self, header: ExtHeader, out: &mut [u8]) {
        const FITS: &str = "the opcode table has the length";
        match header {
            ExtHeader::Reth => self.reth.emit(out.first_chunk_mut().expect(FITS)),
            ExtHeader::AtomicEth => self.atomic.emit(out.first_chunk_mut().expect(FITS)),
            ExtHeader::Aeth => self.aeth.emit(out.first_chunk_mut().expect(FITS)),
            ExtHeader::AtomicAckEth => {
                AtomicAckEth { original: self.original }.emit(out.first_chunk_mut().expect(FITS));
            }
            ExtHeader::ImmDt => ImmDt([1, 2, 3, 4]).emit(out.first_chunk_mut().expect(FITS)),
            ExtHeader::Ieth => Ieth { r_key: self.invalidate }.emit(out.first_chunk_mut().expect(FITS)),
            ExtHeader::Deth => self.deth.emit(out.first_chunk_mut().expect(FITS)),
            ExtHeader::Rdeth | ExtHeader::Xrceth | ExtHeader::Feth | ExtHeader::CnpReserved => {}
        }
    }
}
