//! Posting work requests (ibv_post_send(3), ibv_post_recv(3), ibv_bind_mw(3)): the hot path, without
//! allocation.

use std::ffi::c_int;
use std::ptr;

use roxie::raw::RawQp;

use crate::abi::objects::{ibv_mw, ibv_mw_bind, ibv_qp};
use crate::abi::work::{ibv_recv_wr, ibv_send_wr};
use crate::errno::{code, done, given};
use crate::handle::{Hot, Out, WrList, typed};
use crate::observer::Between;

use super::mw::{MwObject, bind_of};
use super::pd_mr::MrObject;
use super::qp::QpObject;
use super::queue_pair::QueuePair;
use super::work::{post_receives, raw_send_wr, refuse, send_flags, send_wr};

/// Implements `ibv_post_send`: one lock and one doorbell for the whole list.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: ibv_post_send(3).
    let (qp, list, bad_wr): (Option<&QpObject>, WrList<ibv_send_wr>, Option<Out<*mut ibv_send_wr>>) =
        unsafe { typed((Hot(qp), first, bad_wr)) };
    given!(code; qp);
    let qp = match &qp.tail.qp {
        QueuePair::Transport(qp) => qp,
        QueuePair::Raw(raw) => return post_raw(raw, list, bad_wr),
    };
    let mut batch = qp.begin_post();
    for wr in list {
        let posted = send_wr(qp, &wr).and_then(|wr| batch.send(&wr));
        if let Err(error) = posted {
            drop(batch);
            return refuse(&wr, bad_wr, error);
        }
    }
    0
}

/// Posts a list of sends to a raw packet queue pair; returns 0 or an errno.
#[track_caller]
fn post_raw(raw: &RawQp, list: WrList<ibv_send_wr>, bad_wr: Option<Out<*mut ibv_send_wr>>) -> c_int {
    let mut refused = ptr::null_mut();
    let requests = list.map(|wr| {
        refused = wr.as_ptr();
        raw_send_wr(&wr)
    });
    match raw.post_send(requests) {
        Ok(()) => 0,
        Err((_posted, error)) => {
            if let Some(bad_wr) = bad_wr {
                bad_wr.write(refused);
            }
            code(error)
        }
    }
}

/// Implements `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_recv(3).
    let (qp, list, bad_wr): (Option<&QpObject>, WrList<ibv_recv_wr>, Option<Out<*mut ibv_recv_wr>>) =
        unsafe { typed((Hot(qp), first, bad_wr)) };
    given!(code; qp);
    match &qp.tail.qp {
        QueuePair::Transport(qp) => post_receives(list, bad_wr, |wr| qp.post_recv(wr)),
        QueuePair::Raw(raw) => post_receives(list, bad_wr, |wr| raw.post_recv(wr)),
    }
}

/// Implements `ibv_bind_mw`: type 1. The new key is the next after the one in the structure.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: ibv_bind_mw(3).
    let (qp, mw, bind): (Option<&QpObject>, Option<&MwObject>, Option<&ibv_mw_bind>) =
        unsafe { typed((qp, mw, bind.cast_const())) };
    given!(code; qp, mw, bind);
    let flags = done!(code; send_flags(bind.send_flags));
    // SAFETY: ibv_bind_mw(3): the structure names a region.
    let region: Option<&MrObject> = unsafe { typed(bind.bind_info.mr) };
    // The application restores the key that it had after a bind that failed.
    let asked = bind_of(mw.rkey().get(), &bind.bind_info, region);
    let transport = done!(code; qp.tail.qp.transport());
    let bound = asked.and_then(|asked| transport.bind_mw(&mw.tail, bind.wr_id, flags, &asked));
    let r_key = done!(code; bound.between(&[("mw", mw.address()), ("qp", qp.address())]));
    mw.rkey().set(r_key.0);
    0
}
