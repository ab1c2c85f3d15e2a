//! FLUSH and ATOMIC WRITE at the responder (IBA Annex A19): executed at once, confirmed in request order by
//! an empty READ response.
//!
//! Bytes of earlier packets are in memory before a later packet is executed. So a FLUSH to global visibility
//! has nothing to wait for and only checks access rights.

use wire::{Feth, Packet, Reth};

use super::Responder;
use super::replay::Response;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::{Access, Memory};

/// Bytes of an ATOMIC WRITE.
const WORD: u32 = 8;

impl Responder {
    /// Executes a FLUSH of a range, or of a region, for which the RETH names no range.
    pub(super) fn flush(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &Endpoint,
    ) -> Result<(), Fault> {
        let (Some(feth), Some(reth)) = (packet.feth(), packet.reth()) else { return Err(Fault::Length) };
        let need = rights(feth.placement).ok_or(Fault::Opcode)?;
        if !ep.attr.access.contains(need) {
            return Err(Fault::QpAccess);
        }
        self.check_replay(packet.payload().is_empty())?;
        let Reth { va, r_key, dma_len } = reth;
        let checked = match feth.selectivity {
            Feth::RANGE => mem.check_remote(self.message.pd, ep.qpn, r_key, va, u64::from(dma_len), need),
            Feth::WHOLE_MR => mem.check_remote_key(self.message.pd, ep.qpn, r_key, need),
            _ => return Err(Fault::Opcode),
        };
        checked.map_err(Fault::from_access)?;
        self.push_response(1, Response::Done);
        Ok(())
    }

    /// Executes an ATOMIC WRITE: stores eight bytes.
    pub(super) fn atomic_write(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        if !ep.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(Fault::QpAccess);
        }
        let reth = packet.reth().ok_or(Fault::Length)?;
        let payload = packet.payload();
        self.check_replay(reth.dma_len == WORD && payload.len() == WORD as usize)?;
        if !reth.va.is_multiple_of(u64::from(WORD)) {
            return Err(Fault::Misaligned);
        }
        self.before_write(reth.va, payload.len(), mem, ep)?;
        let length = payload.len() as u64;
        mem.message_begins(self.message.pd, ep.qpn, reth.r_key, reth.va, length, Access::REMOTE_WRITE);
        mem.write_remote(self.message.pd, ep.qpn, reth.r_key, reth.va, payload)
            .map_err(Fault::from_access)?;
        ep.counters.rcvd_bytes += u64::from(WORD);
        self.push_response(1, Response::Done);
        Ok(())
    }

    fn check_replay(&self, right_length: bool) -> Result<(), Fault> {
        if !self.replay.has_room() {
            return Err(Fault::TooManyReads);
        }
        if right_length { Ok(()) } else { Err(Fault::Length) }
    }
}

/// Access rights that a placement type needs; `None` for an unknown one.
fn rights(placement: u8) -> Option<Access> {
    let bits =
        [(Feth::GLOBAL_VISIBILITY, Access::FLUSH_GLOBAL), (Feth::PERSISTENCE, Access::FLUSH_PERSISTENT)];
    let known = bits.iter().fold(0, |known, (bit, _)| known | bit);
    if placement == 0 || placement & !known != 0 {
        return None;
    }
    Some(bits.into_iter().filter(|(bit, _)| placement & bit != 0).map(|(_, access)| access).collect())
}

#[cfg(test)]
mod tests {
    use wire::{NakCode, Opcode, Rkey};

    use super::*;
    use crate::testing::{Bench, LOCAL, Pkt, REMOTE, RKEY, RQ_PSN};
    use crate::wc_status::WcStatus;
    use crate::wr::{SendFlags, WrOp};
    use crate::{Errno, QpState, VerbsError};

    const GLOBAL: u8 = Feth::GLOBAL_VISIBILITY;

    fn flush(placement: u8, selectivity: u8) -> Pkt {
        Pkt::new(Opcode::RC_FLUSH, RQ_PSN).feth(placement, selectivity).reth(REMOTE, RKEY, 64)
    }

    fn word(va: u64, value: u8) -> Pkt {
        Pkt::new(Opcode::RC_ATOMIC_WRITE, RQ_PSN).reth(va, RKEY, 8).payload(value, 8)
    }

    /// A responder that permits everything.
    fn bench() -> Bench {
        Bench::rc_with(|attr| attr.access |= Access::FLUSH_GLOBAL)
    }

    #[test]
    fn flush_and_atomic_write_get_an_empty_read_response() {
        let mut b = bench();
        b.mem.put_remote(REMOTE, &[0; 24]);
        let mut second = flush(GLOBAL, 0);
        second.bth.psn = second.bth.psn.advance(1);
        b.recv(&word(REMOTE + 8, 7)).unwrap();
        b.recv(&second).unwrap();
        let responses = b.sent();
        assert_eq!(responses.len(), 2);
        for (psn, response) in (RQ_PSN..).zip(&responses) {
            assert!(response.starts_with(&format!("READ Response Only {psn}")), "{response}");
        }
        assert_eq!(b.mem.remote_at(REMOTE, 24), [[0; 8], [7; 8], [0; 8]].concat());
    }

    #[test]
    fn a_duplicate_flush_or_atomic_write_gets_its_response_and_is_not_executed_again() {
        let mut b = bench();
        b.recv(&word(REMOTE, 7)).unwrap();
        let first = b.sent();
        b.mem.put_remote(REMOTE, &[1; 8]);
        b.recv(&word(REMOTE, 7)).unwrap();
        assert_eq!(b.sent(), first);
        assert_eq!(b.mem.remote_at(REMOTE, 8), [1; 8]);
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let invalid = NakCode::InvalidRequest;
        let access = NakCode::RemoteAccessError;
        for (packet, code) in [
            (word(REMOTE + 4, 7), invalid),
            (word(REMOTE, 7).payload(7, 4), invalid),
            (word(REMOTE, 7).reth(REMOTE, RKEY, 16), invalid),
            (word(REMOTE, 7).reth(REMOTE, Rkey(1), 8), access),
            (flush(0, 0), invalid),
            (flush(4, 0), invalid),
            (flush(GLOBAL, 2), invalid),
            (flush(Feth::PERSISTENCE, 0), invalid),
            (flush(GLOBAL, 0).payload(0, 4), invalid),
            (flush(GLOBAL, 0).reth(REMOTE, RKEY, u32::MAX), access),
            (flush(GLOBAL, 1).reth(0, Rkey(1), 0), access),
        ] {
            let mut b = bench();
            b.mem.put_remote(REMOTE, &[1; 16]);
            b.recv(&packet).unwrap_err();
            let sent = b.sent();
            assert_eq!(sent, [format!("Acknowledge {RQ_PSN} NAK {} msn 0", code as u8)], "{packet:?}");
            assert_eq!(b.qp.state(), QpState::Err);
            assert_eq!(b.mem.remote_at(REMOTE, 16), [1; 16]);
        }
        let mut b = bench();
        b.recv(&flush(GLOBAL, 1).reth(0, RKEY, 0)).unwrap();
        assert_eq!(b.sent().len(), 1, "the address of a FLUSH of a region is not checked");
    }

    #[test]
    fn a_requester_completes_flush_and_atomic_write_by_their_response() {
        let mut b = Bench::rc();
        let (remote_addr, r_key) = (REMOTE + 64, Rkey(9));
        b.mem.put_local(LOCAL, b"ATOMIC W");
        b.post(1, WrOp::AtomicWrite { remote_addr, r_key }, 8);
        b.post(2, WrOp::Flush { remote_addr, r_key, length: 64, placement: GLOBAL, selectivity: 0 }, 0);
        let sent = b.sent();
        assert!(sent[0].starts_with("ATOMIC WRITE 500") && sent[1].starts_with("FLUSH 501"), "{sent:?}");
        b.recv(&Pkt::ack(501)).unwrap();
        assert!(b.send_wcs().is_empty(), "an ACK does not complete it");
        b.sent();
        b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 500)).unwrap();
        b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 501)).unwrap();
        assert_eq!(b.send_wcs(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        b.post(3, WrOp::AtomicWrite { remote_addr, r_key }, 8);
        b.sent();
        b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 502).payload(0, 8)).unwrap();
        assert_eq!(b.send_wcs(), [(3, WcStatus::BadRespErr)]);
    }

    #[test]
    fn malformed_requests_are_not_posted() {
        let mut b = Bench::rc();
        let write = |remote_addr| WrOp::AtomicWrite { remote_addr, r_key: RKEY };
        assert_eq!(
            b.post_flags(1, write(0), 4, SendFlags::empty()).map_err(VerbsError::kind),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            b.post_flags(1, write(4), 8, SendFlags::empty()).map_err(VerbsError::kind),
            Err(Errno::EINVAL)
        );
        assert_eq!(b.post_flags(1, write(8), 8, SendFlags::INLINE), Ok(()));
    }
}
