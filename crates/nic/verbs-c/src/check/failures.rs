//! Completions with an error status: the first of each queue pair is a finding, the flushed rest follows from
//! it.

use std::ffi::{CStr, c_int};

use roxie::transport::{Cause, Wc, WcStatus};

use crate::ibv::strings::ibv_wc_status_str;

use super::memory;
use super::posted::Posted;
use super::report::{FindingKind, report_between};
use super::stack::here;
use super::work::Queue;

/// The kind of the finding about a cause.
fn kind(cause: Option<Cause>) -> FindingKind {
    match cause {
        Some(Cause::SendKey | Cause::RecvKey) => FindingKind::BadLkey,
        Some(Cause::SendPd | Cause::RecvPd) => FindingKind::WrongPd,
        Some(Cause::SendBounds | Cause::RecvBounds) => FindingKind::OutOfBounds,
        Some(Cause::SendRights | Cause::RecvRights) => FindingKind::MissingAccess,
        Some(Cause::SendUnmapped | Cause::RecvUnmapped) => FindingKind::MemoryUnmapped,
        Some(Cause::NoReads) => FindingKind::ReadsDisabled,
        Some(Cause::RemoteAccess) => FindingKind::RemoteAccess,
        Some(Cause::RemoteInvalidRequest) => FindingKind::RemoteInvalidRequest,
        Some(Cause::NoAnswer) => FindingKind::NoAnswer,
        Some(Cause::NotReady) => FindingKind::ReceiverNotReady,
        Some(Cause::RecvTooShort) => FindingKind::ReceiveTooSmall,
        _ => FindingKind::CompletionError,
    }
}

/// Judges the first failed completion of a queue pair; `found` is its work request.
pub(super) fn judge(wc: &Wc, queue: &Queue, found: Option<&Posted>, is_receive: bool, peer: Option<u32>) {
    if wc.status == WcStatus::WrFlushErr {
        return;
    }
    let cause = Cause::from_vendor_err(wc.vendor_err);
    // SAFETY: the function returns a string of this library for every number.
    let status = unsafe { CStr::from_ptr(ibv_wc_status_str(wc.status as c_int)) }.to_string_lossy();
    let (meaning, remedy) =
        cause.map_or(("The cause is not known.", ""), |cause| (cause.meaning(), cause.remedy()));
    let what = found.map_or_else(
        || if is_receive { "receive".to_owned() } else { "send".to_owned() },
        |posted| format!("{} of {} bytes", posted.operation, posted.bytes),
    );
    let (wr_id, number, kind) = (wc.wr_id, queue.number, kind(cause));
    let unknown =
        found.filter(|_| kind == FindingKind::BadLkey).and_then(|posted| memory::unknown_key(&posted.list));
    let key = unknown.map_or_else(String::new, |lkey| format!(" It is lkey {lkey:#x}."));
    let text = format!(
        "the {what} with wr_id {wr_id:#x} on queue pair {number:#08x} failed: {status}. {meaning}{key} \
         {remedy}"
    );
    let polled = ("polled", here());
    let sites = found.map_or(vec![polled], |posted| vec![("posted", posted.posted), polled]);
    report_between(kind, text.trim_end(), &sites, peer.map(|peer| (number, peer)));
}
