//! Local work requests, which send nothing: they change keys of this side, in queue order (IBA 10.6.6.3,
//! 10.7.2.2).
//!
//! Each waits until everything before it is complete, so a retransmission never executes it again.

use crate::cause::Cause;
use crate::endpoint::Endpoint;
use crate::memory::Memory;
use crate::wr::WrOp;

/// Executes a local work request; the error is the cause it completes with.
pub(crate) fn execute(op: &WrOp, mem: &impl Memory, ep: &Endpoint) -> Result<(), Cause> {
    match op {
        WrOp::LocalInv(key) => mem.invalidate(ep.pd, ep.qpn, *key).map_err(|_| Cause::InvalidateRefused),
        WrOp::BindMw(bind) => mem.bind(ep.pd, ep.qpn, bind).map_err(|_| Cause::BindRefused),
        WrOp::RegMr(reg) => mem.register_fast(ep.pd, reg).map_err(|_| Cause::RegisterRefused),
        _ => Err(Cause::NotPossible),
    }
}

#[cfg(test)]
mod tests {
    use wire::{Lkey, Rkey};

    use super::*;
    use crate::memory::{Access, FastReg, MwBind};
    use crate::qp::Qp;
    use crate::testing::{Bench, Pkt};
    use crate::wc::WcOpcode;
    use crate::wc_status::WcStatus;
    use crate::{QpEvent, QpState};

    const BIND: MwBind =
        MwBind { r_key: Rkey(0x77), mr: Lkey(1), addr: 0, len: 8, access: Access::REMOTE_READ };

    fn completions(qp: &mut Qp) -> Vec<(u64, WcOpcode, WcStatus)> {
        let wcs = core::iter::from_fn(|| qp.poll_event()).filter_map(|event| match event {
            QpEvent::SendWc(wc) => Some((wc.wr_id, wc.opcode, wc.status)),
            _ => None,
        });
        wcs.collect()
    }

    #[test]
    fn a_bind_takes_effect_in_queue_order() {
        let mut b = Bench::rc();
        b.post(1, WrOp::Send, 8);
        b.post(2, WrOp::BindMw(BIND), 0);
        let key = Rkey(0x300);
        b.post(3, WrOp::RegMr(FastReg { key, iova: 0, access: Access::empty() }), 0);
        b.post(4, WrOp::Send, 8);
        assert_eq!(b.sent().len(), 1, "the SEND behind the bind must not overtake it");
        assert!(b.mem.changed.borrow().is_empty());
        b.recv(&Pkt::ack(500)).unwrap();
        assert_eq!(b.sent(), ["SEND Only 501 AckReq [8]"]);
        assert_eq!(*b.mem.changed.borrow(), [0x77, 0x300]);
        let ok = WcStatus::Success;
        let done = [(1, WcOpcode::Send, ok), (2, WcOpcode::BindMw, ok), (3, WcOpcode::RegMr, ok)];
        assert_eq!(completions(&mut b.qp), done);
    }

    #[test]
    fn a_bind_that_fails_completes_with_mw_bind_err() {
        let mut b = Bench::rc();
        b.mem.read_only.set(true);
        b.post(1, WrOp::BindMw(BIND), 0);
        b.sent();
        assert_eq!(completions(&mut b.qp), [(1, WcOpcode::BindMw, WcStatus::MwBindErr)]);
        assert_eq!(b.qp.state(), QpState::Err);
    }
}
