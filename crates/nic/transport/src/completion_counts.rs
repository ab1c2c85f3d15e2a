//! Counts of completed operations by kind, for completion counters (ibv_qp_attach_comp_cntr(3)).

use core::mem;

use crate::wc_status::WcStatus;
use crate::wr::WrOp;

/// A kind of operations that completion counters count (`ibv_qp_attach_comp_cntr_op`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CountedOp {
    /// SENDs of this side.
    Send = 0,
    /// Receives.
    Recv = 1,
    /// READs of this side.
    Read = 2,
    /// READs of the peer, complete when the response has left.
    RemoteRead = 3,
    /// WRITEs of this side.
    Write = 4,
    /// WRITEs of the peer.
    RemoteWrite = 5,
}

/// What has completed since the counts were last taken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CompletionCount {
    /// Operations that succeeded.
    pub completions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that failed, flushed ones included.
    pub errors: u64,
}

/// The counts of a queue pair. A queue pair without completion counters has none.
#[derive(Debug, Default)]
pub(crate) struct CompletionCounts {
    has_new: bool,
    counts: [CompletionCount; CountedOp::COUNT],
}

impl CountedOp {
    /// Number of kinds.
    pub const COUNT: usize = 6;
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Send, Self::Recv, Self::Read, Self::RemoteRead, Self::Write, Self::RemoteWrite];

    /// The bit of the kind in `op_mask`.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The kind of a work request; `None` for atomics, FLUSH, ATOMIC WRITE and local operations.
    pub(crate) fn of(op: &WrOp) -> Option<Self> {
        match op {
            WrOp::Send | WrOp::SendImm(_) | WrOp::SendInv(_) => Some(Self::Send),
            WrOp::Write { .. } | WrOp::WriteImm { .. } => Some(Self::Write),
            WrOp::Read { .. } => Some(Self::Read),
            _ => None,
        }
    }
}

impl CompletionCounts {
    /// Counts one operation.
    #[cold]
    pub(crate) fn add(&mut self, op: CountedOp, bytes: u64, status: WcStatus) {
        let count = &mut self.counts[op as usize];
        if status == WcStatus::Success {
            count.completions += 1;
            count.bytes += bytes;
        } else {
            count.errors += 1;
        }
        self.has_new = true;
    }

    /// Returns the counts since the last call, by kind; `None` if nothing was counted.
    pub(crate) fn take(&mut self) -> Option<[CompletionCount; CountedOp::COUNT]> {
        mem::take(&mut self.has_new).then(|| mem::take(&mut self.counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, Pkt, REMOTE, RKEY, RQ_PSN, SQ_PSN, config, read, write};
    use crate::{Errno, QpState, QpType, VerbsError, WrOp};
    use wire::{NakCode, Opcode};

    /// A connected queue pair that counts.
    fn bench() -> Bench {
        let mut b = Bench::new(config(QpType::Rc), &crate::testing::attr(), QpState::Init);
        b.qp.count_completions().expect("in INIT");
        for state in [QpState::Rtr, QpState::Rts] {
            let attr = crate::QpAttr { state, ..crate::testing::attr() };
            b.qp.modify(b.now, &attr, crate::QpAttrMask::required(QpType::Rc, state)).expect("connected");
        }
        b
    }

    fn counted(b: &mut Bench, op: CountedOp) -> [u64; 3] {
        let count = b.qp.take_completion_counts().expect("something was counted")[op as usize];
        [count.completions, count.bytes, count.errors]
    }

    #[test]
    fn counting_begins_before_the_connection() {
        assert_eq!(Bench::rc().qp.count_completions().map_err(VerbsError::kind), Err(Errno::EINVAL));
        let mut b = bench();
        assert_eq!(b.qp.take_completion_counts(), None);
    }

    #[test]
    fn unsignaled_requests_count_when_they_are_acknowledged_and_others_fail() {
        let mut b = bench();
        b.post_flags(1, WrOp::Send, 100, crate::SendFlags::empty()).unwrap();
        b.post_flags(2, write(0), 3000, crate::SendFlags::empty()).unwrap();
        b.post_flags(3, read(0), 10, crate::SendFlags::empty()).unwrap();
        b.sent();
        assert_eq!(b.qp.take_completion_counts(), None);
        b.recv(&Pkt::ack(SQ_PSN)).unwrap();
        assert_eq!(counted(&mut b, CountedOp::Send), [1, 100, 0]);
        b.recv(&Pkt::ack(SQ_PSN + 3)).unwrap();
        assert_eq!(counted(&mut b, CountedOp::Write), [1, 3000, 0]);
        b.recv(&Pkt::nak(SQ_PSN + 4, NakCode::RemoteAccessError)).unwrap();
        assert_eq!(counted(&mut b, CountedOp::Read), [0, 0, 1]);
    }

    #[test]
    fn a_read_of_the_peer_counts_once_when_its_response_has_left() {
        let mut b = bench();
        let request = Pkt::new(Opcode::RC_READ_REQUEST, RQ_PSN).reth(REMOTE, RKEY, 2000);
        b.recv(&request).unwrap();
        assert_eq!(b.qp.take_completion_counts(), None);
        b.sent();
        assert_eq!(counted(&mut b, CountedOp::RemoteRead), [1, 2000, 0]);
        b.recv(&request).unwrap();
        b.sent();
        assert_eq!(b.qp.take_completion_counts(), None, "a duplicate");
    }

    #[test]
    fn a_write_of_the_peer_counts_with_its_last_packet_and_a_refused_one_as_an_error() {
        let mut b = bench();
        let packets = [
            Pkt::new(Opcode::RC_WRITE_FIRST, RQ_PSN).reth(REMOTE, RKEY, 1030).payload(1, 1024),
            Pkt::new(Opcode::RC_WRITE_LAST, RQ_PSN + 1).payload(1, 6),
        ];
        b.recv(&packets[0]).unwrap();
        assert_eq!(b.qp.take_completion_counts(), None);
        b.recv(&packets[1]).unwrap();
        assert_eq!(counted(&mut b, CountedOp::RemoteWrite), [1, 1030, 0]);
        let refused = Pkt::new(Opcode::RC_WRITE_ONLY, RQ_PSN + 2).reth(REMOTE, wire::Rkey(9), 8);
        assert!(b.recv(&refused.payload(1, 8)).is_err());
        assert_eq!(counted(&mut b, CountedOp::RemoteWrite), [0, 0, 1]);
    }
}
