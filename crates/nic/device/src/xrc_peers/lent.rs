//! The receives that this process has lent to the receiving XRC queue pairs of other processes. The engine's
//! lock protects them.

use std::collections::HashMap;

use transport::{AsyncEventKind, Instant, PdId, RecvWqe, Wc, WcStatus};

use super::record::{Kind, Record};
use crate::engine::tables::Tables;
use crate::verbs::{AsyncElement, AsyncEvent};

/// Most receives that are lent at a time. Beyond that the queues count as empty.
const LENT_MAX: usize = 4096;

/// The connection of a borrower, and the id that this process has given the receive.
pub(super) type LentId = (u64, u64);

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Lent(HashMap<LentId, LentReceive>);

struct LentReceive {
    /// Index of its shared receive queue.
    srq: u32,
    wqe: RecvWqe,
    /// The bytes could not be written to its memory.
    has_failed: bool,
}

/// The answer to a borrower.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Loan {
    /// So many bytes fit.
    Lent(u64),
    NotReady,
    Refused,
}

/// The other end of a connection answers what it was not asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct NotABorrower;

impl Lent {
    /// A shared receive queue is destroyed, with the receives that are lent.
    pub(crate) fn remove_srq(&mut self, index: u32) {
        self.0.retain(|_, lent| lent.srq != index);
    }
}

impl Tables {
    /// Handles a record of the borrower at the other end of a connection; `domain` stands for the file in the
    /// record, if it is open here. Returns the answer to an ASK, which lends the receive `next`; `Err` if a
    /// borrower does not send such a record.
    pub(super) fn handle_borrower(
        &mut self,
        now: Instant,
        (connection, next): LentId,
        record: &Record,
        data: &[u8],
        domain: Option<PdId>,
    ) -> Result<Option<Record>, NotABorrower> {
        let Record { kind, file, srqn, id, value, wc, solicited } = *record;
        let lent = (connection, id);
        match kind {
            Kind::Ask => {
                let loan = domain.map_or(Loan::Refused, |domain| self.lend((connection, next), domain, srqn));
                let (kind, value) = match loan {
                    Loan::Lent(room) => (Kind::Lend, room),
                    Loan::NotReady => (Kind::NotReady, 0),
                    Loan::Refused => (Kind::Refuse, 0),
                };
                return Ok(Some(Record { value, ..Record::new(kind, file, srqn, next) }));
            }
            Kind::Data => self.write_lent(lent, value, data),
            Kind::Done => self.finish_lent(now, lent, wc, solicited),
            Kind::GiveBack => self.take_back(now, lent),
            Kind::Lend | Kind::NotReady | Kind::Refuse => return Err(NotABorrower),
        }
        Ok(None)
    }

    /// Lends a receive of the XRC shared receive queue `srqn`, if it is in `domain`.
    fn lend(&mut self, id: LentId, domain: PdId, srqn: u32) -> Loan {
        let (slot, srqs) = (self.slot(), &mut self.srqs);
        if crate::srqs::slot_of(srqn) != slot {
            return Loan::Refused;
        }
        let index = crate::srqs::index_of(srqn);
        let is_full = srqs.lent.0.len() >= LENT_MAX;
        let Some(entry) = srqs.get_mut(index) else { return Loan::Refused };
        if entry.xrc.as_ref().is_none_or(|xrc| xrc.domain != domain) {
            return Loan::Refused;
        }
        if is_full {
            return Loan::NotReady;
        }
        let Some((wqe, limit_reached)) = entry.queue.withdraw() else { return Loan::NotReady };
        if limit_reached {
            let element = AsyncElement::Srq(entry.cookie);
            entry.events.push(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, element });
        }
        let room = wqe.room();
        srqs.lent.0.insert(id, LentReceive { srq: index, wqe, has_failed: false });
        Loan::Lent(room)
    }

    /// Writes bytes of a message to a lent receive.
    fn write_lent(&mut self, id: LentId, offset: u64, bytes: &[u8]) {
        if let Some(lent) = self.srqs.lent.0.get_mut(&id) {
            lent.has_failed |= lent.wqe.write(&self.mrs, offset, bytes).is_err();
        }
    }

    /// Completes a lent receive.
    fn finish_lent(&mut self, now: Instant, id: LentId, wc: Wc, solicited: bool) {
        let Some(LentReceive { srq, wqe, has_failed }) = self.srqs.lent.0.remove(&id) else { return };
        let failed = has_failed && wc.status == WcStatus::Success;
        let status = if failed { WcStatus::LocProtErr } else { wc.status };
        let byte_len = u64::from(wc.byte_len).min(wqe.room()) as u32;
        let solicited = solicited || status != WcStatus::Success;
        self.complete_lent(now, srq, Wc { wr_id: wqe.wr_id(), status, byte_len, ..wc }, solicited);
    }

    /// Puts a lent receive that no message has taken back to its queue.
    fn take_back(&mut self, now: Instant, id: LentId) {
        let Some(LentReceive { srq, wqe, .. }) = self.srqs.lent.0.remove(&id) else { return };
        let reposted = self.srqs.get_mut(srq).map(|entry| entry.queue.put_back(&wqe));
        if reposted.is_some_and(|posted| posted.is_err()) {
            // The application has filled the queue meanwhile.
            let wc = Wc { wr_id: wqe.wr_id(), status: WcStatus::WrFlushErr, ..Wc::default() };
            self.complete_lent(now, srq, wc, true);
        }
    }

    /// Takes back everything that was lent on a connection, which has ended.
    pub(super) fn take_back_all(&mut self, now: Instant, connection: u64) {
        let mut ids: Vec<LentId> = self.srqs.lent.0.keys().filter(|id| id.0 == connection).copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.take_back(now, id));
    }

    fn complete_lent(&mut self, now: Instant, srq: u32, wc: Wc, solicited: bool) {
        let Some(entry) = self.srqs.get(srq) else { return };
        let Some(xrc) = &entry.xrc else { return };
        if !xrc.cq.adding(now).push(wc, solicited) {
            let element = AsyncElement::Cq(xrc.cq.cookie());
            entry.events.push(AsyncEvent { kind: AsyncEventKind::CqErr, element });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cq::CompletionQueue;
    use crate::events::EventQueue;
    use crate::gid::GidTable;
    use crate::srqs::{SrqEntry, XrcScope, srqn};
    use transport::{RecvQueue, RecvWr, Sge};
    use wire::Lkey;

    const SLOT: u16 = 3;
    const DOMAIN: PdId = PdId(7);
    const NOW: Instant = Instant(5);

    /// An engine with one XRC shared receive queue of two receives of 10 bytes, ids 1 and 2, and its CQ.
    fn owner(cqe: u32) -> (Tables, Arc<CompletionQueue>) {
        let mut tables = Tables::new(SLOT, &Arc::new(GidTable::without_addresses()));
        let cq = CompletionQueue::new(cqe, None, 0, Arc::default(), &Arc::default(), 4);
        let mut queue = RecvQueue::new(2, 1, PdId(1)).expect("small");
        for wr_id in [1, 2] {
            let sge = Sge { addr: 0x1000, length: 10, lkey: Lkey(5) };
            queue.post(&RecvWr { wr_id, sg_list: &[sge] }).expect("room");
        }
        let xrc = Some(XrcScope { domain: DOMAIN, cq: Arc::clone(&cq) });
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        tables.srqs.entries.push(Some(SrqEntry { queue, cookie: 0, events, xrc }));
        (tables, cq)
    }

    fn lend(tables: &mut Tables, id: LentId) -> Loan {
        tables.lend(id, DOMAIN, srqn(SLOT, 0))
    }

    #[test]
    fn receives_are_lent_in_order_from_queues_of_the_domain_only() {
        let (mut tables, cq) = owner(4);
        assert_eq!(tables.lend((0, 0), PdId(8), srqn(SLOT, 0)), Loan::Refused);
        assert_eq!(tables.lend((0, 0), DOMAIN, srqn(SLOT, 1)), Loan::Refused);
        assert_eq!(tables.lend((0, 0), DOMAIN, srqn(SLOT + 1, 0)), Loan::Refused);
        assert_eq!((lend(&mut tables, (0, 0)), lend(&mut tables, (1, 0))), (Loan::Lent(10), Loan::Lent(10)));
        assert_eq!(lend(&mut tables, (0, 1)), Loan::NotReady);
        // The borrower says more bytes than fit, and the CQ gets the id of the application.
        let wc = Wc { byte_len: 99, qp_num: 6, wr_id: 77, ..Wc::default() };
        tables.finish_lent(NOW, (1, 0), wc, false);
        assert_eq!(cq.pop_one(), Some(Wc { byte_len: 10, qp_num: 6, wr_id: 2, ..Wc::default() }));
        // Ids of other borrowers, and ids that were completed, mean nothing.
        tables.finish_lent(NOW, (1, 0), wc, false);
        tables.finish_lent(NOW, (2, 0), wc, false);
        tables.take_back(NOW, (1, 0));
        tables.write_lent((1, 0), 0, b"late");
        assert_eq!(cq.pop_one(), None);
        assert_eq!(lend(&mut tables, (0, 1)), Loan::NotReady);
    }

    #[test]
    fn a_queue_with_the_same_index_in_another_slot_is_another_queue() {
        let (tables, _cq) = owner(4);
        assert!(tables.srqs.by_number(SLOT, srqn(SLOT, 0)).is_some());
        assert!(tables.srqs.by_number(SLOT, srqn(SLOT + 1, 0)).is_none());
    }

    #[test]
    fn bytes_that_do_not_fit_or_cannot_be_written_fail_the_receive() {
        let (mut tables, cq) = owner(4);
        for (id, offset) in [(0, u64::MAX), (1, 0)] {
            assert_eq!(lend(&mut tables, (0, id)), Loan::Lent(10));
            tables.write_lent((0, id), offset, b"bytes");
            tables.finish_lent(NOW, (0, id), Wc::default(), false);
            let wc = cq.pop_one().expect("a completion");
            assert_eq!((wc.wr_id, wc.status), (id + 1, WcStatus::LocProtErr));
        }
    }

    #[test]
    fn receives_return_to_their_queue_in_order_when_the_borrower_ends() {
        let (mut tables, cq) = owner(4);
        assert_eq!((lend(&mut tables, (4, 0)), lend(&mut tables, (5, 1))), (Loan::Lent(10), Loan::Lent(10)));
        tables.take_back_all(NOW, 5);
        tables.take_back_all(NOW, 4);
        assert_eq!((lend(&mut tables, (6, 2)), lend(&mut tables, (6, 3))), (Loan::Lent(10), Loan::Lent(10)));
        tables.finish_lent(NOW, (6, 2), Wc::default(), false);
        assert_eq!(cq.pop_one().expect("a completion").wr_id, 1);
        // Without room in the queue the receive is flushed.
        let queue = &mut tables.srqs.get_mut(0).expect("the queue").queue;
        (8..10).for_each(|wr_id| queue.post(&RecvWr { wr_id, sg_list: &[] }).expect("room"));
        tables.take_back_all(NOW, 6);
        let wc = cq.pop_one().expect("a completion");
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlushErr));
    }

    #[test]
    fn a_destroyed_queue_takes_its_lent_receives_along() {
        let (mut tables, cq) = owner(4);
        assert_eq!(lend(&mut tables, (0, 0)), Loan::Lent(10));
        tables.srqs.lent.remove_srq(0);
        tables.finish_lent(NOW, (0, 0), Wc::default(), false);
        assert_eq!(cq.pop_one(), None);
    }
}
