//! Attributes of queue pairs in C and in Rust (ibv_modify_qp(3), ibv_query_qp(3)).

use std::ffi::c_int;

use roxie::transport::refusal::Value;
use roxie::transport::{Access, PathMtu, QpAttr, QpAttrMask, QpState, VerbsError, refuse};
use roxie::wire::{Psn, QKey, Qpn};

use crate::abi::objects::{IBV_MIG_MIGRATED, ibv_qp_attr};
use crate::errno::known_bits;

use super::ah;

/// Returns the state of an `enum ibv_qp_state` in the field `name`.
pub(crate) fn state_of(name: &'static str, state: c_int) -> Result<QpState, VerbsError> {
    QpState::known(state as u64).ok_or_else(|| {
        if name == "cur_qp_state" {
            return refuse!(EINVAL, "queue pair", "cur_qp_state"; state as i32; is "{state}, no IBV_QPS_*");
        }
        refuse!(EINVAL, "queue pair", "qp_state"; state as i32; is "{state}, no IBV_QPS_*")
    })
}

/// Returns the attributes that `mask` names; the others have their defaults.
pub(crate) fn attr_from_c(attr: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr, VerbsError> {
    let has = |bit| mask.contains(bit);
    let mut to = QpAttr {
        q_key: QKey(attr.qkey),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qp: Qpn::new(attr.dest_qp_num),
        cap: attr.cap,
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rate_limit: attr.rate_limit,
        ..QpAttr::default()
    };
    if has(QpAttrMask::STATE) {
        to.state = state_of("qp_state", attr.qp_state)?;
    }
    if has(QpAttrMask::CUR_STATE) {
        to.cur_state = state_of("cur_qp_state", attr.cur_qp_state)?;
    }
    if has(QpAttrMask::PATH_MTU) {
        let mtu = attr.path_mtu;
        let known = u8::try_from(mtu).ok().and_then(PathMtu::from_code);
        to.path_mtu = known.ok_or_else(|| {
            refuse!(EINVAL, "queue pair", "path_mtu"; mtu as i32;
                is "{mtu}, the values are 1 (256 bytes) to 5 (4096 bytes)")
        })?;
    }
    if has(QpAttrMask::ACCESS_FLAGS) {
        let flags = attr.qp_access_flags;
        known_bits!(Err; EINVAL, "queue pair", "qp_access_flags"; flags, Access::all().bits());
        to.access = Access::from_bits_truncate(flags);
    }
    if has(QpAttrMask::AV) {
        to.av = ah::address_vector(&attr.ah_attr)?;
    }
    Ok(to)
}

/// Returns the C form of all attributes.
pub(crate) fn attr_to_c(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as c_int,
        cur_qp_state: attr.state as c_int,
        path_mtu: attr.path_mtu as c_int,
        // There is no alternate path.
        path_mig_state: IBV_MIG_MIGRATED,
        qkey: attr.q_key.0,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qp.value(),
        qp_access_flags: attr.access.bits(),
        cap: attr.cap,
        ah_attr: ah::ah_attr(&attr.av),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rate_limit: attr.rate_limit,
        ..ibv_qp_attr::default()
    }
}
