//! Flow rules (ibv_create_flow(3)).

use std::ffi::c_int;

use roxie::raw::{Flow, FlowAttr, FlowSpecs, FlowType, SPEC_HEADER_LEN, SPECS_MAX};
use roxie::transport::{Errno, VerbsError, refuse};

use crate::abi::objects::{IBV_QPT_UD, ibv_qp};
use crate::abi::steering::{
    IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_ATTR_FLAGS_EGRESS,
    IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_SNIFFER, ibv_flow, ibv_flow_attr,
};
use crate::errno::{code, done, given, known_bits, null};
use crate::handle::{GivenUp, typed};
use crate::object::Object;

use super::context::ContextObject;
use super::handles::new_handle;
use super::qp::QpObject;
use super::query::check_port;
use super::queue_pair::QueuePair;

type FlowObject = Object<ibv_flow, Flow>;

/// Implements `ibv_create_flow`.
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    // SAFETY: ibv_create_flow(3).
    let (qp, attr_of): (Option<&QpObject>, Option<&ibv_flow_attr>) =
        unsafe { typed((qp, attr.cast_const())) };
    given!(null; qp, attr_of as "flow_attr");
    let QueuePair::Raw(raw) = &qp.tail.qp else {
        let ty = qp.qp_type().get();
        let errno = if ty == IBV_QPT_UD { Errno::EOPNOTSUPP } else { Errno::EINVAL };
        return null(refuse!((errno), "queue pair", "qp_type"; ty;
            is "{ty}; flow rules are for raw packet queue pairs (8)"));
    };
    known_bits!(null; EINVAL, "flow rule", "comp_mask"; attr_of.comp_mask, 0);
    done!(null; check_port(attr_of.port.into()));
    let count = attr_of.num_of_specs;
    if count > SPECS_MAX {
        return null(refuse!(EINVAL, "flow rule", "num_of_specs"; count;
            is "{count}, the largest value is {SPECS_MAX}"));
    }
    let specs_at = attr.wrapping_add(1).cast_const().cast();
    // SAFETY: ibv_create_flow(3): `num_of_specs` specifications follow the attributes.
    let specs = unsafe { specs(specs_at, attr_of.num_of_specs) };
    let created = specs.and_then(|specs| raw.create_flow(&flow_attr(attr_of, specs)?));
    let flow = done!(null; created);
    let context = qp.context().map_or(std::ptr::null_mut(), ContextObject::public_context);
    FlowObject::export(ibv_flow { comp_mask: 0, context, handle: new_handle() }, flow)
}

fn flow_attr(attr: &ibv_flow_attr, specs: FlowSpecs) -> Result<FlowAttr, VerbsError> {
    let ty = match attr.r#type {
        IBV_FLOW_ATTR_NORMAL => FlowType::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => FlowType::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => FlowType::McDefault,
        IBV_FLOW_ATTR_SNIFFER => FlowType::Sniffer,
        ty => return Err(refuse!(EINVAL, "flow rule", "type"; ty; is "{ty}, the types are 0 to 3")),
    };
    let known = IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS;
    known_bits!(Err; EINVAL, "flow rule", "flags"; attr.flags, known);
    known_bits!(Err; EOPNOTSUPP, "flow rule", "flags"; attr.flags, IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
    let dont_trap = attr.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    Ok(FlowAttr { ty, priority: attr.priority, dont_trap, specs })
}

/// Returns the `count` specifications that begin at `next`. As in libibverbs, their own sizes count and not
/// the size in the attributes.
///
/// # Safety
/// So many specifications are there, each as long as its member `size` says.
unsafe fn specs(mut next: *const u8, count: u8) -> Result<FlowSpecs, VerbsError> {
    let mut specs = FlowSpecs::default();
    for _ in 0..count {
        // SAFETY: a specification begins with its type and its size.
        let header: Option<&[u8]> = unsafe { typed((next, SPEC_HEADER_LEN)) };
        let size = header.map_or(0, |header| usize::from(u16::from_ne_bytes([header[4], header[5]])));
        if size < SPEC_HEADER_LEN {
            return Err(refuse!(EINVAL, "flow specification", "size"; size;
                is "{size}, less than the header of a specification"));
        }
        // SAFETY: the specification has so many bytes.
        let spec: Option<&[u8]> = unsafe { typed((next, size)) };
        specs.add(spec.unwrap_or_default())?;
        next = next.wrapping_add(size);
    }
    specs.check().map(|()| specs)
}

/// Implements `ibv_destroy_flow`.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: ibv_create_flow(3).
    let flow: Option<GivenUp<FlowObject>> = unsafe { typed(flow) };
    given!(code; flow);
    flow.free();
    0
}
