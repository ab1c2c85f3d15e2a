//! The table of faults: NAK, completion, event and state when a request breaks a rule (IBA 9.9.3, C9-222).

use wire::{DropReason, NakCode};

use crate::cause::Cause;
use crate::event::AsyncEventKind;
use crate::memory::AccessFault;

/// A fault of a request that the responder received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// The PSN is ahead of the expected one.
    PsnAhead,
    /// The message needs a receive work request and there is none.
    NoReceiveWqe,
    /// The request would change what an unsent READ response has to read. The responder NAKs it itself.
    UnsentRead,
    /// A duplicate READ or atomic that is not (or no longer) in the replay queue.
    DuplicateNotKept,
    /// An opcode that this service does not have, or not at this place of a message.
    Opcode,
    /// `qp_access_flags` does not permit the operation.
    QpAccess,
    /// A payload or message length breaks a rule.
    Length,
    /// The message is longer than the receive work request.
    RecvTooLong,
    /// More READs and atomics outstanding than `max_dest_rd_atomic`.
    TooManyReads,
    /// An atomic on an address that is not a multiple of 8.
    Misaligned,
    /// R_Key, protection domain, bounds or rights.
    RemoteAccess,
    /// The L_Key of the receive work request names no region.
    RecvKey,
    /// The memory of the receive work request belongs to another protection domain.
    RecvPd,
    /// The receive work request reaches beyond its region.
    RecvBounds,
    /// The region of the receive work request may not be written.
    RecvRights,
    /// The memory of the receive work request is no longer mapped.
    RecvUnmapped,
    /// The key of a SEND with Invalidate cannot be invalidated.
    Invalidate,
    /// There is no such XRC shared receive queue, or it is of another XRC domain.
    XrcSrq,
}

/// The NAK that a fault causes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NakKind {
    /// Nothing.
    Silence,
    /// A NAK with this code.
    Nak(NakCode),
    /// An RNR NAK with the queue pair's timer.
    Rnr,
}

/// The consequences of a fault on a reliable connection. On an unreliable one the message is dropped.
#[derive(Debug)]
pub(crate) struct Row {
    fault: Fault,
    pub(crate) nak: NakKind,
    /// Why the receive work request fails that the message holds, if it holds one.
    pub(crate) completion: Option<Cause>,
    /// The event if it holds none.
    pub(crate) event: Option<AsyncEventKind>,
    /// Whether the queue pair goes to the error state.
    pub(crate) fatal: bool,
    /// The drop reason that counts the packet.
    pub(crate) reason: DropReason,
}

const fn transient(fault: Fault, nak: NakKind, reason: DropReason) -> Row {
    Row { fault, nak, reason, completion: None, event: None, fatal: false }
}

const fn fatal(
    fault: Fault,
    nak: NakKind,
    completion: Cause,
    event: Option<AsyncEventKind>,
    reason: DropReason,
) -> Row {
    Row { fault, nak, reason, completion: Some(completion), event, fatal: true }
}

#[rustfmt::skip]
static ROWS: [Row; 18] = {
    use {Cause as C, DropReason as Drop, Fault as F};
    const SEQUENCE: NakKind = NakKind::Nak(NakCode::PsnSequenceError);
    const INVALID: NakKind = NakKind::Nak(NakCode::InvalidRequest);
    const REMOTE_ACCESS: NakKind = NakKind::Nak(NakCode::RemoteAccessError);
    const REMOTE_OP: NakKind = NakKind::Nak(NakCode::RemoteOperationalError);
    const SILENCE: NakKind = NakKind::Silence;
    const REQ: Option<AsyncEventKind> = Some(AsyncEventKind::QpReqErr);
    const ACCESS: Option<AsyncEventKind> = Some(AsyncEventKind::QpAccessErr);
    [
        transient(F::PsnAhead,         SEQUENCE,     Drop::OutOfSequence),
        transient(F::NoReceiveWqe,     NakKind::Rnr, Drop::NoReceive),
        transient(F::UnsentRead,       SILENCE,      Drop::OutOfSequence),
        transient(F::DuplicateNotKept, SILENCE,      Drop::Duplicate),
        fatal(F::Opcode,       INVALID,       C::PeerOpcode,     REQ,    Drop::BadSequenceOfOpcodes),
        fatal(F::QpAccess,     INVALID,       C::PeerPermission, REQ,    Drop::AccessFault),
        fatal(F::Length,       INVALID,       C::PeerLength,     REQ,    Drop::BadLength),
        fatal(F::RecvTooLong,  INVALID,       C::RecvTooShort,   None,   Drop::ReceiveTooSmall),
        fatal(F::TooManyReads, INVALID,       C::PeerReads,      REQ,    Drop::QueueFull),
        fatal(F::Misaligned,   INVALID,       C::PeerAlignment,  REQ,    Drop::AccessFault),
        fatal(F::RemoteAccess, REMOTE_ACCESS, C::PeerAccess,     ACCESS, Drop::AccessFault),
        fatal(F::RecvKey,      REMOTE_OP,     C::RecvKey,        None,   Drop::AccessFault),
        fatal(F::RecvPd,       REMOTE_OP,     C::RecvPd,         None,   Drop::AccessFault),
        fatal(F::RecvBounds,   REMOTE_OP,     C::RecvBounds,     None,   Drop::AccessFault),
        fatal(F::RecvRights,   REMOTE_OP,     C::RecvRights,     None,   Drop::AccessFault),
        fatal(F::RecvUnmapped, REMOTE_OP,     C::RecvUnmapped,   None,   Drop::AccessFault),
        fatal(F::Invalidate,   SILENCE,       C::PeerInvalidate, None,   Drop::AccessFault),
        fatal(F::XrcSrq,       INVALID,       C::PeerSrq,        REQ,    Drop::NoSuchSrq),
    ]
};

impl Fault {
    /// The consequences.
    pub(crate) fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The fault of a refused access to memory that the peer named.
    pub(crate) fn from_access(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Misaligned => Self::Misaligned,
            AccessFault::BadKey
            | AccessFault::WrongPd
            | AccessFault::OutOfBounds
            | AccessFault::Permission
            | AccessFault::Unmapped => Self::RemoteAccess,
        }
    }

    /// The fault when memory of the receive work request was refused: the one that fails it for this cause.
    #[cold]
    pub(crate) fn from_receive(fault: AccessFault) -> Self {
        let cause = Cause::of_recv(fault);
        ROWS.iter().find(|row| row.completion == Some(cause)).map_or(Self::RecvKey, |row| row.fault)
    }

    /// Whether memory of the receive work request was refused.
    pub(crate) fn is_of_receive_memory(self) -> bool {
        matches!(
            self,
            Self::RecvKey | Self::RecvPd | Self::RecvBounds | Self::RecvRights | Self::RecvUnmapped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_belongs_to_its_fault() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.fault as usize, index);
            assert!(core::ptr::eq(row.fault.row(), row));
        }
    }

    /// IBA C9-222: an error without a work request that can complete in error raises an event.
    #[test]
    fn every_fatal_fault_makes_a_completion_or_an_event() {
        for row in &ROWS {
            assert_eq!(row.fatal, row.completion.is_some(), "{:?}", row.fault);
            assert!(row.fatal || row.event.is_none(), "{:?}", row.fault);
        }
    }
}
