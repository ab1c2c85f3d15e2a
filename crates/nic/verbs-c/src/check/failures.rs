//! Completions with an error status: the first of each queue pair is a finding, the flushed rest follows from
//! it.

use std::ffi::{CStr, c_int};

use roxie::transport::{Cause, Wc, WcStatus};

use crate::ibv::strings::ibv_wc_status_str;

use super::memory;
use super::posted::Posted;
use super::report::report_between;
use super::stack::here;
use super::work::Queue;

/// The name of the finding about a cause.
fn kind(cause: Option<Cause>) -> &'static str {
    match cause {
        Some(Cause::SendKey | Cause::RecvKey) => "bad-lkey",
        Some(Cause::SendPd | Cause::RecvPd) => "wrong-pd",
        Some(Cause::SendBounds | Cause::RecvBounds) => "out-of-bounds",
        Some(Cause::SendRights | Cause::RecvRights) => "missing-access",
        Some(Cause::SendUnmapped | Cause::RecvUnmapped) => "memory-unmapped",
        Some(Cause::NoReads) => "reads-disabled",
        Some(Cause::RemoteAccess) => "remote-access",
        Some(Cause::RemoteInvalidRequest) => "remote-invalid-request",
        Some(Cause::NoAnswer) => "no-answer",
        Some(Cause::NotReady) => "receiver-not-ready",
        Some(Cause::RecvTooShort) => "receive-too-small",
        _ => "completion-error",
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
    let unknown = found.filter(|_| kind == "bad-lkey").and_then(|posted| memory::unknown_key(&posted.list));
    let key = unknown.map_or_else(String::new, |lkey| format!(" It is lkey {lkey:#x}."));
    let text = format!(
        "the {what} with wr_id {wr_id:#x} on queue pair {number:#08x} failed: {status}. {meaning}{key} \
         {remedy}"
    );
    let polled = ("polled", here());
    let ends = peer.map(|peer| (number, peer));
    match found {
        Some(posted) => {
            report_between(kind, text.trim_end(), &[("posted", posted.posted), polled], ends);
        }
        None => report_between(kind, text.trim_end(), &[polled], ends),
    }
}
