//! A posted work request: its memory, and what is wrong if that changes before the completion.

use roxie::transport::{RecvWr, Sge, WrOp};
use sys::guarded::pages::Rights;
use sys::now_ns;

use super::memory;
use super::options::OPTIONS;
use super::pages::{self, Protection, User};
use super::report::{FindingKind, report};
use super::stack::{Site, here};

/// A posted work request.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) operation: &'static str,
    pub(super) bytes: u64,
    pub(super) is_signaled: bool,
    /// The peer may have answered: the application may know that it is done.
    pub(super) may_be_done: bool,
    pub(super) posted: Site,
    /// When, for receives with `--races`.
    pub(super) time_ns: u64,
    pub(super) list: Box<[Sge]>,
    /// The device writes the result of a READ or atomic there.
    pub(super) gets_result: bool,
    /// Checksum of the memory at the post, for operations that read it.
    pub(super) sum: Option<u64>,
    /// The application must not use the memory.
    pub(super) pages: Option<Protection>,
}

impl Posted {
    /// The memory of a send may change, as far as is known.
    pub(super) fn forget(&mut self) {
        self.sum = None;
        if !self.gets_result {
            self.pages = None;
        }
    }

    /// A receive of this queue pair, or of a shared receive queue.
    pub(super) fn receive(wr: &RecvWr<'_>, queue: Option<u32>) -> Self {
        let (posted, bytes, operation) = (here(), bytes(wr.sg_list), "receive");
        let user = User { operation, bytes, is_receive: true, ..User::own(queue, wr.wr_id, posted) };
        Self {
            wr_id: wr.wr_id,
            operation,
            bytes,
            is_signaled: true,
            may_be_done: false,
            posted,
            time_ns: if OPTIONS.races { now_ns() } else { 0 },
            list: wr.sg_list.into(),
            gets_result: false,
            sum: None,
            pages: pages::protect(wr.sg_list, Rights::Nothing, user),
        }
    }
}

/// Reports memory that was freed while the device used it; returns whether it was.
pub(super) fn freed(work: &Posted, number: u32) -> bool {
    let is_freed = memory::is_poisoned(&work.list);
    if is_freed {
        let text = format!(
            "the memory of the {} with wr_id {:#x} ({} bytes) on queue pair {number:#08x} was freed before \
             the completion, or is partly outside of an allocation (AddressSanitizer)",
            work.operation, work.wr_id, work.bytes
        );
        report(FindingKind::MemoryFreed, &text, &[("posted", work.posted), ("completed", here())]);
    }
    is_freed
}

/// Compares the memory of a send that has completed with what it was at the post.
pub(super) fn compare(send: &mut Posted, number: u32, success: bool) {
    let is_told = send.pages.take().is_some_and(Protection::end);
    if success && freed(send, number) {
        return;
    }
    let Some(sum) = send.sum.filter(|_| success && !is_told) else { return };
    let (kind, what) = match memory::checksum(&send.list) {
        Ok(now) if now == sum => return,
        Ok(_) => (FindingKind::SendBufferChanged, "changed"),
        Err(memory::Unmapped) => (FindingKind::MemoryUnmapped, "was unmapped"),
    };
    let text = format!(
        "the memory of the {} with wr_id {:#x} ({} bytes) on queue pair {number:#08x} {what} between the \
         post and the completion: the peer may get either content",
        send.operation, send.wr_id, send.bytes
    );
    report(kind, &text, &[("posted", send.posted), ("completed", here())]);
}

/// Reports a receive or a READ (operation, `wr_id` and place) that overlaps a work request that the device
/// has: two messages may end in the same memory, or a message may be overwritten before it has left.
pub(super) fn overlap<'a>(
    (operation, wr_id, posted): (&str, u64, Site),
    list: &[Sge],
    others: impl Iterator<Item = &'a Posted>,
) {
    if !OPTIONS.strict {
        return;
    }
    for other in others {
        if have_overlap(list, &other.list) {
            let text = format!(
                "the {operation} with wr_id {wr_id:#x} uses memory of the posted {} with wr_id {:#x}",
                other.operation, other.wr_id
            );
            let sites = [("posted", posted), ("posted first", other.posted)];
            return report(FindingKind::ReceiveOverlap, &text, &sites);
        }
    }
}

/// Whether two lists have memory in common.
pub(super) fn have_overlap(some: &[Sge], others: &[Sge]) -> bool {
    let end = |sge: &Sge| sge.addr.saturating_add(u64::from(sge.length));
    let overlaps = |a: &Sge, b: &Sge| a.addr < end(b) && b.addr < end(a);
    some.iter().any(|a| others.iter().any(|b| overlaps(a, b)))
}

pub(super) fn bytes(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Name of an operation, whether it sends memory of this side, and the address of an atomic.
pub(super) fn describe(op: &WrOp) -> (&'static str, bool, Option<u64>) {
    match *op {
        WrOp::Send | WrOp::SendImm(_) | WrOp::SendInv(_) => ("SEND", true, None),
        WrOp::Write { .. } | WrOp::WriteImm { .. } => ("WRITE", true, None),
        WrOp::Read { .. } => ("READ", false, None),
        WrOp::CompareSwap { remote_addr, .. } => ("compare-and-swap", false, Some(remote_addr)),
        WrOp::FetchAdd { remote_addr, .. } => ("fetch-and-add", false, Some(remote_addr)),
        WrOp::AtomicWrite { remote_addr, .. } => ("atomic WRITE", true, Some(remote_addr)),
        WrOp::Flush { .. } => ("FLUSH", false, None),
        WrOp::LocalInv(_) => ("local invalidation", false, None),
        WrOp::BindMw(_) => ("bind of a memory window", false, None),
        WrOp::RegMr(_) => ("fast registration", false, None),
    }
}

/// Whether the device writes the result of an operation to memory of this side.
pub(super) const fn gets_result(op: &WrOp) -> bool {
    matches!(op, WrOp::Read { .. } | WrOp::CompareSwap { .. } | WrOp::FetchAdd { .. })
}

#[cfg(test)]
mod tests {
    use roxie::wire::Lkey;

    use super::*;

    #[test]
    fn lists_overlap_up_to_the_end_of_the_addresses() {
        let at = |addr| [Sge { addr, length: 16, lkey: Lkey(1) }];
        assert!(have_overlap(&at(100), &at(115)) && !have_overlap(&at(100), &at(116)));
        assert!(have_overlap(&at(u64::MAX - 7), &at(u64::MAX - 3)));
        assert!(!have_overlap(&at(u64::MAX - 7), &at(0)));
    }
}
