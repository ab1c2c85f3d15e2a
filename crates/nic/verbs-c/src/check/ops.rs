//! The functions of the data path in a checked process: they look at their arguments, then call the usual
//! ones.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::{iter, ptr};

use roxie::same_device;
use roxie::transport::{QpType, Wc, WcStatus};

use crate::abi::context::verbs_context;
use crate::abi::objects::{ibv_cq, ibv_qp, ibv_qp_ex, ibv_srq};
use crate::abi::work::{ibv_ah, ibv_recv_wr, ibv_send_wr};
use crate::errno::{code, given, minus_code};
use crate::handle::{Hot, Out, WorkRequest, Wr, WrList, typed};
use crate::ibv::ah::AhObject;
use crate::ibv::cq::CqObject;
use crate::ibv::qp::QpObject;
use crate::ibv::srq::SrqObject;
use crate::ibv::work::{recv_wr, ud};
use crate::ibv::{cq, post, srq, wr};

use super::objects::{POISON_BYTE, mixed};
use super::options::lock;
use super::posted::Posted;
use super::report::{FindingKind, report};
use super::stack::here;
use super::{looks, pages, waits, work};

/// Puts these functions into the operations of a new context.
pub(super) fn replace(context: usize) {
    // SAFETY: an object that the application does not know yet.
    let ops = unsafe { &mut (*(context as *mut verbs_context)).context.ops };
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

/// Puts these functions into a new queue pair, if it has a builder.
pub(super) fn replace_builder(qp: usize) {
    // SAFETY: an object that the application does not know yet.
    let qp = unsafe { &mut *(qp as *mut ibv_qp_ex) };
    if qp.wr_complete.is_some() {
        qp.wr_complete = Some(wr_complete);
        qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    }
}

/// Calls `post` with a place for the refused work request of the list `first`. All work requests of the list
/// are in `queue`, from `before` on; takes those out that were not posted. The application gets the refused
/// one, too.
///
/// # Safety
/// `first` and `bad_wr` are what the application passed to the function of the result.
unsafe fn post_all<W: WorkRequest>(
    queue: &mut VecDeque<Posted>,
    before: usize,
    first: *mut W,
    bad_wr: *mut *mut W,
    post: impl FnOnce(*mut *mut W) -> c_int,
) -> c_int {
    let mut bad = ptr::null_mut();
    let result = post(&raw mut bad);
    if result != 0 {
        // SAFETY: the caller's promise.
        let (list, room): (WrList<W>, Option<Out<*mut W>>) = unsafe { typed((first, bad_wr)) };
        if let Some(room) = room {
            room.write(bad);
        }
        queue.truncate(before + list.take_while(|wr| wr.as_ptr() != bad).count());
    }
    result
}

/// The bits of an address that are 0 in those of a process. AArch64 has 52 bits, and may ignore the upper 8.
const UPPER_BITS: usize = if cfg!(target_arch = "x86_64") { !0 << 47 } else { 0xf << 52 };

/// Returns the work requests of a list. Reports a `next` that cannot be the address of one, and ends there.
/// The device uses it next, which ends most processes by SIGSEGV.
#[inline]
fn walk<'a, W: WorkRequest>(mut list: WrList<'a, W>) -> impl Iterator<Item = Wr<'a, W>> {
    iter::successors(list.next(), move |wr| {
        let next = wr.get().next();
        if next.is_null() || next.is_aligned() && next.addr() >= 4096 && next.addr() & UPPER_BITS == 0 {
            return list.next();
        }
        let fix = "set it to NULL in the last one of a list";
        let text = format!("next of the work request is {next:p}, which cannot be the address of one; {fix}");
        report(FindingKind::ForeignObject, &text, &[("posted", here())]);
        None
    })
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: ibv_post_send(3).
    let (object, list): (Option<&QpObject>, WrList<ibv_send_wr>) = unsafe { typed((qp, first)) };
    given!(code; object as "qp");
    looks::judge_completion(false);
    if object.tail.qp.transport().is_ok_and(|qp| qp.ty() == QpType::Ud) {
        // SAFETY: as above.
        let datagrams: WrList<ibv_send_wr> = unsafe { typed(first) };
        // SAFETY: as above.
        walk(datagrams).for_each(|wr| unsafe { datagram(object, ud(wr.get()).ah) });
    }
    let queue = work::of(object);
    let mut queue = lock(&queue);
    queue.begin_post(object);
    let before = queue.sends.len();
    let list = walk(list).map_while(|wr| object.tail.qp.send_wr(&wr).ok());
    list.enumerate().for_each(|(index, wr)| queue.send(&wr, index));
    // SAFETY: ibv_post_send(3).
    let post = |bad: *mut _| unsafe { post::post_send(qp, first, bad) };
    // SAFETY: the arguments of this call.
    let result = unsafe { post_all(&mut queue.sends, before, first, bad_wr, post) };
    let posted = queue.sends.len() - before;
    if result != 0 {
        queue.numbers.take_back(posted);
    }
    drop(queue);
    pages::report_uses(work::is_ready);
    result
}

/// Looks at the address handle of a datagram. The contents of a destroyed handle are kept, so the post
/// continues after the report.
///
/// # Safety
/// As for [`typed`] with `ah`.
unsafe fn datagram(qp: &QpObject, ah: *mut ibv_ah) {
    // SAFETY: the caller's promise.
    let ah: Option<&AhObject> = unsafe { typed(ah) };
    if let (Some(ah), Ok(transport)) = (ah, qp.tail.qp.transport()) {
        let devices = [transport.pd(), ah.tail.pd()].map(|pd| pd.context().device());
        let parts = [("queue pair", qp.address()), ("address handle", ah.address())];
        let same = same_device!("queue pair", "address handle"; devices[0], devices[1]);
        let _reported = same.inspect_err(|refused| mixed(refused, &parts));
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_recv(3).
    let (object, list): (Option<&QpObject>, WrList<ibv_recv_wr>) = unsafe { typed((qp, first)) };
    given!(code; object as "qp");
    let queue = work::of(object);
    let mut queue = lock(&queue);
    let before = queue.receives.len();
    walk(list).map_while(|wr| recv_wr(&wr).ok()).for_each(|wr| queue.receive(&wr));
    // SAFETY: ibv_post_recv(3).
    let post = |bad: *mut _| unsafe { post::post_recv(qp, first, bad) };
    // SAFETY: the arguments of this call.
    let result = unsafe { post_all(&mut queue.receives, before, first, bad_wr, post) };
    if result == libc::ENOMEM {
        queue.receive_refused(object);
    }
    result
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_srq_recv(3).
    let (object, list): (Option<&SrqObject>, WrList<ibv_recv_wr>) = unsafe { typed((srq, first)) };
    given!(code; object as "srq");
    let queue = work::of_srq(srq.addr());
    let mut queue = lock(&queue);
    let before = queue.receives.len();
    let srqn = object.tail.srq.number().unwrap_or_default();
    walk(list).map_while(|wr| recv_wr(&wr).ok()).for_each(|wr| queue.receive(&wr, srqn));
    // SAFETY: ibv_post_srq_recv(3).
    let post = |bad: *mut _| unsafe { srq::post_srq_recv(srq, first, bad) };
    // SAFETY: the arguments of this call.
    unsafe { post_all(&mut queue.receives, before, first, bad_wr, post) }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: ibv_poll_cq(3).
    let object: Option<&CqObject> = unsafe { typed(cq) };
    given!(minus_code; object as "cq");
    looks::judge_completion(false);
    // SAFETY: as above.
    let polled = unsafe { cq::poll_cq(cq, entries, wc) };
    waits::polled(object, polled);
    for at in 0..usize::try_from(polled).unwrap_or(0) {
        // SAFETY: the function has written that many.
        let wc = unsafe {
            poison(wc.add(at));
            &*wc.add(at)
        };
        if wc.status != WcStatus::Success && work::is_first_failure(wc.qp_num) {
            looks::failed(wc);
        }
    }
    polled
}

/// Fills the fields of a completion that ibv_poll_cq(3) leaves undefined: a NIC leaves other values there
/// than this device does. Of a failed one only `wr_id`, `status`, `qp_num` and `vendor_err` are valid; others
/// have immediate data or a key if `wc_flags` says so.
///
/// # Safety
/// `wc` may be written, and holds a completion.
unsafe fn poison(wc: *mut Wc) {
    // SAFETY: the caller's promise; the application reads the fields as numbers.
    unsafe {
        if (*wc).status != WcStatus::Success {
            (&raw mut (*wc).opcode).cast::<u32>().write(POISON);
            (*wc).byte_len = POISON;
            (*wc).imm_data = POISON.to_ne_bytes();
            (*wc).src_qp = POISON;
            (*wc).wc_flags = POISON;
        } else if (*wc).wc_flags & (Wc::WITH_IMM | Wc::WITH_INV) == 0 {
            (*wc).imm_data = POISON.to_ne_bytes();
        }
    }
}

/// No opcode, length, number or flags of a completion. IBV_WC_RECV (bit 7) is not set: `opcode & IBV_WC_RECV`
/// would turn each failed send into a receive.
const POISON: u32 = u32::from_ne_bytes([POISON_BYTE; 4]);

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: ibv_req_notify_cq(3).
    let object: Option<&CqObject> = unsafe { typed(cq) };
    given!(code; object as "cq");
    waits::armed(object);
    // SAFETY: as above.
    unsafe { cq::req_notify_cq(cq, solicited_only) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: ibv_wr_post(3).
    unsafe {
        let object: Option<&QpObject> = typed(Hot(qp));
        object.into_iter().for_each(|object| datagram(object, ah));
        wr::wr_set_ud_addr(qp, ah, remote_qpn, remote_qkey);
    }
}

/// Implements `ibv_wr_complete`.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: ibv_wr_post(3).
    unsafe {
        wr::complete(qp, |batch, object| {
            let queue = work::of(object);
            let mut queue = lock(&queue);
            queue.begin_post(object);
            let before = queue.sends.len();
            batch.for_each(|wr| {
                let index = queue.sends.len() - before;
                queue.send(wr, index);
            });
            let posted = batch.post(&object.tail.qp);
            if posted.is_err() {
                // Some of them may be posted: they complete unknown.
                queue.sends.truncate(before);
                queue.numbers.lose();
            }
            posted
        })
    }
}
