//! Completion counters (ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3)).

use std::ffi::c_int;

use libc::size_t;
use roxie::transport::refuse;
use roxie::verbs::{CompCounter, CompCounterType};

use crate::abi::context::ibv_context;
use crate::abi::counters::{
    IBV_COMP_CNTR_TYPE_BYTES, IBV_COMP_CNTR_TYPE_WRS, ibv_comp_cntr, ibv_comp_cntr_caps,
    ibv_comp_cntr_init_attr, ibv_qp_attach_comp_cntr_attr,
};
use crate::abi::objects::ibv_qp;
use crate::errno::{busy, code, done, given, known_bits, null, status};
use crate::handle::{GivenUp, Out, OutBytes, typed};
use crate::object::Object;
use crate::observer::{Between, observer};

use super::context::ContextObject;
use super::handles::new_handle;
use super::qp::QpObject;

type CompCntrObject = Object<ibv_comp_cntr, CompCounter>;

pub(crate) unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: size_t,
) -> c_int {
    // SAFETY: ibv_query_comp_cntr_caps(3).
    let (context, to): (Option<&ContextObject>, Option<OutBytes>) = unsafe { typed((context, (caps, size))) };
    given!(code; context, to);
    let caps = ibv_comp_cntr_caps {
        max_value: u64::MAX,
        max_counters: CompCounter::MAX,
        supported_qp_attach_ops: CompCounter::OPS,
    };
    to.write_at(0, &caps);
    to.zero_from(size_of_val(&caps));
    0
}

pub(crate) unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: ibv_create_comp_cntr(3).
    let (context, attr): (Option<&ContextObject>, Option<&ibv_comp_cntr_init_attr>) =
        unsafe { typed((context, attr.cast_const())) };
    given!(null; context, attr);
    known_bits!(null; EINVAL, "completion counter", "comp_mask"; attr.comp_mask, 0);
    known_bits!(null; EINVAL, "completion counter", "flags"; attr.flags, 0);
    let ty = match attr.r#type {
        IBV_COMP_CNTR_TYPE_WRS => CompCounterType::WorkRequests,
        IBV_COMP_CNTR_TYPE_BYTES => CompCounterType::Bytes,
        ty => {
            return null(refuse!(EOPNOTSUPP, "completion counter", "type"; ty;
                is "{ty}; the device counts work requests and bytes"));
        }
    };
    let counter = done!(null; context.tail.context.create_comp_counter(ty));
    let public = ibv_comp_cntr { context: context.public_context(), handle: new_handle() };
    CompCntrObject::export(public, counter)
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: ibv_create_comp_cntr(3).
    let counter: Option<GivenUp<CompCntrObject>> = unsafe { typed(counter) };
    given!(code; counter);
    if counter.tail.in_use() {
        return code(busy!("completion counter"; "queue pairs use the completion counter"));
    }
    counter.free();
    0
}

/// Calls `f` with the counter; returns 0 or an errno.
///
/// # Safety
/// As for [`typed`] with `counter`.
#[track_caller]
unsafe fn with(counter: *mut ibv_comp_cntr, f: impl FnOnce(&CompCounter)) -> c_int {
    // SAFETY: the caller's contract.
    let counter: Option<&CompCntrObject> = unsafe { typed(counter) };
    given!(code; counter);
    f(&counter.tail);
    0
}

pub(crate) unsafe extern "C" fn ibv_set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: ibv_create_comp_cntr(3).
    unsafe { with(counter, |counter| counter.set_completions(value)) }
}

pub(crate) unsafe extern "C" fn ibv_set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: ibv_create_comp_cntr(3).
    unsafe { with(counter, |counter| counter.set_errors(value)) }
}

pub(crate) unsafe extern "C" fn ibv_inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: ibv_create_comp_cntr(3).
    unsafe { with(counter, |counter| counter.add_completions(amount)) }
}

pub(crate) unsafe extern "C" fn ibv_inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: ibv_create_comp_cntr(3).
    unsafe { with(counter, |counter| counter.add_errors(amount)) }
}

/// Gives the application a value of the counter; returns 0 or an errno.
///
/// # Safety
/// As for [`typed`] with both pointers.
#[track_caller]
unsafe fn read(counter: *mut ibv_comp_cntr, to: *mut u64, value: fn(&CompCounter) -> u64) -> c_int {
    // SAFETY: the caller's contract.
    let (counter, to): (Option<&CompCntrObject>, Option<Out<u64>>) = unsafe { typed((counter, to)) };
    given!(code; counter, to);
    to.write(value(&counter.tail));
    0
}

pub(crate) unsafe extern "C" fn ibv_read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: ibv_create_comp_cntr(3).
    unsafe { read(counter, value, CompCounter::completions) }
}

pub(crate) unsafe extern "C" fn ibv_read_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: ibv_create_comp_cntr(3).
    unsafe { read(counter, value, CompCounter::errors) }
}

pub(crate) unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: ibv_qp_attach_comp_cntr(3).
    let (qp, counter, attr): (
        Option<&QpObject>,
        Option<&CompCntrObject>,
        Option<&ibv_qp_attach_comp_cntr_attr>,
    ) = unsafe { typed((qp, counter, attr.cast_const())) };
    given!(code; qp, counter, attr);
    known_bits!(code; EINVAL, "completion counter", "comp_mask"; attr.comp_mask, 0);
    let attached = qp.tail.qp.transport().and_then(|qp| counter.tail.attach(qp, attr.op_mask));
    if let Some(observer) = observer().filter(|_| attached.is_ok()) {
        (observer.counted)(qp.address());
    }
    status(attached.between(&[("comp_cntr", counter.address()), ("qp", qp.address())]))
}
