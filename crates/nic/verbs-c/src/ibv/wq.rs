//! Work queues and indirection tables (ibv_create_wq(3), ibv_create_rwq_ind_table(3)).

use std::ffi::c_int;

use roxie::raw::{IndTable, RawWq, WqState};
use roxie::transport::{VerbsError, refuse};

use crate::abi::Zeroed;
use crate::abi::context::ibv_context;
use crate::abi::steering::{
    IBV_WQ_ATTR_CURR_STATE, IBV_WQ_ATTR_STATE, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQS_ERR, IBV_WQS_RDY,
    IBV_WQS_RESET, IBV_WQT_RQ, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr,
};
use crate::abi::work::ibv_recv_wr;
use crate::errno::{busy, code, done, given, known_bits, no_argument, null};
use crate::handle::{GivenUp, Out, WrList, members, typed};
use crate::object::Object;
use crate::observer::Between;

use super::context::ContextObject;
use super::cq::CqObject;
use super::handles::new_handle;
use super::pd_mr::PdObject;
use super::work::post_receives;

pub(crate) type WqObject = Object<ibv_wq, RawWq>;
pub(crate) type TableObject = Object<ibv_rwq_ind_table, IndTable>;

members! { WqObject {
    state: state as c_int;
} }

/// Implements `ibv_create_wq`.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: ibv_create_wq(3).
    let (context, attr): (Option<&ContextObject>, Option<&mut ibv_wq_init_attr>) =
        unsafe { typed((context, attr)) };
    given!(null; context, attr);
    let flags = if attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 { attr.create_flags } else { 0 };
    known_bits!(null; EOPNOTSUPP, "work queue", "comp_mask"; attr.comp_mask, IBV_WQ_INIT_ATTR_FLAGS);
    known_bits!(null; EOPNOTSUPP, "work queue", "create_flags"; flags, 0);
    // SAFETY: ibv_create_wq(3): the attributes name a domain and a CQ.
    let (pd, cq): (Option<&PdObject>, Option<&CqObject>) = unsafe { typed((attr.pd, attr.cq)) };
    given!(null; pd, cq);
    done!(null; pd.check_device(context));
    let ty = attr.wq_type;
    if ty != IBV_WQT_RQ {
        return null(
            refuse!(EINVAL, "work queue", "wq_type"; ty; is "{ty}, the only type is IBV_WQT_RQ (0)"),
        );
    }
    let handle = new_handle();
    let wq = RawWq::new(&pd.tail, &cq.tail.cq, attr.max_wr, attr.max_sge, handle.into());
    let wq = done!(null; wq.between(&[("pd", pd.address()), ("cq", cq.address())]));
    (attr.max_wr, attr.max_sge) = wq.sizes();
    let mut public = ibv_wq::zeroed();
    public.context = context.public_context();
    public.wq_context = attr.wq_context;
    (public.pd, public.cq) = (attr.pd, attr.cq);
    (public.wq_num, public.handle) = (wq.number(), handle);
    (public.state, public.wq_type) = (IBV_WQS_RESET, IBV_WQT_RQ);
    public.post_recv = Some(post_wq_recv);
    WqObject::export(public, wq)
}

/// Implements `ibv_modify_wq`.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    const KNOWN: u32 = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
    // SAFETY: ibv_modify_wq(3).
    let (wq, attr): (Option<&WqObject>, Option<&ibv_wq_attr>) = unsafe { typed((wq, attr.cast_const())) };
    given!(code; wq, attr);
    known_bits!(code; EOPNOTSUPP, "work queue", "attr_mask"; attr.attr_mask, KNOWN);
    let has = |bit| attr.attr_mask & bit != 0;
    let state = |bit, value| has(bit).then(|| state_from_c(value)).transpose();
    let from = done!(code; state(IBV_WQ_ATTR_CURR_STATE, attr.curr_wq_state));
    let to = done!(code; state(IBV_WQ_ATTR_STATE, attr.wq_state)).unwrap_or(wq.tail.state());
    done!(code; wq.tail.modify(from, to));
    wq.state().set(to as c_int);
    0
}

fn state_from_c(state: c_int) -> Result<WqState, VerbsError> {
    match state {
        IBV_WQS_RESET => Ok(WqState::Reset),
        IBV_WQS_RDY => Ok(WqState::Ready),
        IBV_WQS_ERR => Ok(WqState::Err),
        _ => Err(refuse!(EINVAL, "work queue", "wq_state"; state as i32;
            is "{state}; the states are RESET (0), RDY (1) and ERR (2)")),
    }
}

/// Implements `ibv_destroy_wq`.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: ibv_create_wq(3).
    let wq: Option<GivenUp<WqObject>> = unsafe { typed(wq) };
    given!(code; wq);
    if wq.tail.in_use() {
        return code(busy!("work queue"; "indirection tables use the work queue"));
    }
    wq.free();
    0
}

/// Implements `ibv_post_wq_recv`.
unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_recv(3).
    let (wq, list, bad_wr): (Option<&WqObject>, WrList<ibv_recv_wr>, Option<Out<*mut ibv_recv_wr>>) =
        unsafe { typed((wq, first, bad_wr)) };
    given!(code; wq);
    post_receives(list, bad_wr, |wr| wq.tail.post_recv(wr))
}

/// Implements `ibv_create_rwq_ind_table`.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    // SAFETY: ibv_create_rwq_ind_table(3).
    let (context, attr): (Option<&ContextObject>, Option<&ibv_rwq_ind_table_init_attr>) =
        unsafe { typed((context, attr.cast_const())) };
    given!(null; context, attr);
    known_bits!(null; EOPNOTSUPP, "indirection table", "comp_mask"; attr.comp_mask, 0);
    let (log_size, most) = (attr.log_ind_tbl_size, IndTable::LEN_MAX.ilog2());
    if log_size > most {
        return null(refuse!(EINVAL, "indirection table", "log_ind_tbl_size"; log_size, most;
            is "{log_size}, the largest value is {most}"));
    }
    // SAFETY: ibv_create_rwq_ind_table(3): an array of so many work queues.
    let entries: Option<&[*mut ibv_wq]> =
        unsafe { typed((attr.ind_tbl.cast_const().cast(), 1_usize << attr.log_ind_tbl_size)) };
    let wqs: Option<Vec<RawWq>> = entries.and_then(|entries| {
        // SAFETY: as above.
        entries
            .iter()
            .map(|wq| unsafe { typed::<Option<&WqObject>, _>(*wq) }.map(|wq| wq.tail.clone()))
            .collect()
    });
    let table = done!(null; wqs.ok_or_else(|| no_argument!("ind_tbl")).and_then(IndTable::new));
    let handle = new_handle() as c_int;
    let public = ibv_rwq_ind_table {
        context: context.public_context(),
        ind_tbl_handle: handle,
        ind_tbl_num: handle,
        comp_mask: 0,
    };
    TableObject::export(public, table)
}

/// Implements `ibv_destroy_rwq_ind_table`.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: ibv_create_rwq_ind_table(3).
    let table: Option<GivenUp<TableObject>> = unsafe { typed(table) };
    given!(code; table);
    if table.tail.in_use() {
        return code(busy!("indirection table"; "RSS queue pairs use the indirection table"));
    }
    table.free();
    0
}
