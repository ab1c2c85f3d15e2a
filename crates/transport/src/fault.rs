//! The tables of faults: what the responder answers and completes when a request breaks a rule (IBA 9.9.3, C9-222), and
//! which status a send work request ends with (IBA 9.9.2).

use wire::{DropReason, NakCode};

use crate::event::AsyncEventKind;
use crate::memory::AccessFault;
use crate::wc::WcStatus;

/// What can be wrong with a request that the responder received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// The PSN is ahead of the expected one.
    PsnAhead,
    /// The message needs a receive work request and there is none.
    NoReceiveWqe,
    /// A duplicate READ or atomic that is not (or no longer) in the replay queue.
    DuplicateUnanswerable,
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
    /// The receive work request's own memory cannot be written.
    RecvWqeProtection,
    /// The key of a SEND with Invalidate cannot be invalidated.
    Invalidate,
    /// There is no such XRC shared receive queue, or it is of another XRC domain.
    XrcSrq,
}

/// What a fault is answered with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NakKind {
    /// Nothing.
    Silence,
    /// A NAK with this code.
    Nak(NakCode),
    /// An RNR NAK with the queue pair's timer.
    Rnr,
}

/// One row: the consequences of a fault on a reliable connection. On an unreliable one the message is dropped.
#[derive(Debug)]
pub(crate) struct Row {
    #[cfg_attr(not(test), expect(dead_code, reason = "names the row"))]
    fault: Fault,
    pub(crate) nak: NakKind,
    /// Status of the receive work request that the message holds, if it holds one.
    pub(crate) completion: Option<WcStatus>,
    /// The event when it holds none.
    pub(crate) event: Option<AsyncEventKind>,
    /// Whether the queue pair goes to the error state.
    pub(crate) fatal: bool,
    /// What the packet is counted as.
    pub(crate) reason: DropReason,
}

const fn transient(fault: Fault, nak: NakKind, reason: DropReason) -> Row {
    Row { fault, nak, reason, completion: None, event: None, fatal: false }
}

const fn fatal(
    fault: Fault,
    nak: NakKind,
    completion: WcStatus,
    event: Option<AsyncEventKind>,
    reason: DropReason,
) -> Row {
    Row { fault, nak, reason, completion: Some(completion), event, fatal: true }
}

const REQ: Option<AsyncEventKind> = Some(AsyncEventKind::QpReqErr);
const ACCESS: Option<AsyncEventKind> = Some(AsyncEventKind::QpAccessErr);
const INVALID: NakKind = NakKind::Nak(NakCode::InvalidRequest);

#[rustfmt::skip]
static ROWS: [Row; 13] = [
    transient(Fault::PsnAhead,              NakKind::Nak(NakCode::PsnSequenceError), DropReason::OutOfSequence),
    transient(Fault::NoReceiveWqe,          NakKind::Rnr, DropReason::NoReceive),
    transient(Fault::DuplicateUnanswerable, NakKind::Silence, DropReason::Duplicate),
    fatal(Fault::Opcode,            INVALID,                                   WcStatus::LocQpOpErr,   REQ, DropReason::BadSequenceOfOpcodes),
    fatal(Fault::QpAccess,          INVALID,                                   WcStatus::LocQpOpErr,   REQ, DropReason::AccessFault),
    fatal(Fault::Length,            INVALID,                                   WcStatus::LocQpOpErr,   REQ, DropReason::BadLength),
    fatal(Fault::RecvTooLong,       INVALID,                                   WcStatus::LocLenErr,    None, DropReason::ReceiveTooSmall),
    fatal(Fault::TooManyReads,      INVALID,                                   WcStatus::LocQpOpErr,   REQ, DropReason::QueueFull),
    fatal(Fault::Misaligned,        INVALID,                                   WcStatus::LocQpOpErr,   REQ, DropReason::AccessFault),
    fatal(Fault::RemoteAccess,      NakKind::Nak(NakCode::RemoteAccessError),        WcStatus::LocAccessErr, ACCESS, DropReason::AccessFault),
    fatal(Fault::RecvWqeProtection, NakKind::Nak(NakCode::RemoteOperationalError),   WcStatus::LocProtErr,   None, DropReason::AccessFault),
    fatal(Fault::Invalidate,        NakKind::Silence,                           WcStatus::RemInvReqErr, None, DropReason::AccessFault),
    fatal(Fault::XrcSrq,            INVALID,                                   WcStatus::LocQpOpErr,   REQ, DropReason::NoSuchSrq),
];

impl Fault {
    /// The consequences.
    pub(crate) fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The fault that a refused access to memory named by the peer is.
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
}

/// The status of a send work request that the peer refused; `None` for a NAK that is not final.
pub(crate) fn status_of_nak(code: NakCode) -> Option<WcStatus> {
    match code {
        NakCode::PsnSequenceError => None,
        NakCode::InvalidRequest => Some(WcStatus::RemInvReqErr),
        NakCode::RemoteAccessError => Some(WcStatus::RemAccessErr),
        NakCode::RemoteOperationalError => Some(WcStatus::RemOpErr),
        NakCode::InvalidRdRequest => Some(WcStatus::RemInvRdReqErr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_the_row_of_its_name() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.fault as usize, index);
            assert!(core::ptr::eq(row.fault.row(), row));
        }
    }

    /// IBA C9-222: an error that has no work request to blame raises an event, unless one is always held.
    #[test]
    fn fatal_faults_are_reported_somewhere() {
        for row in &ROWS {
            assert_eq!(row.fatal, row.completion.is_some(), "{:?}", row.fault);
            assert!(row.fatal || row.event.is_none(), "{:?}", row.fault);
        }
    }
}
