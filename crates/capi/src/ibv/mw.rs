//! Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)).

use std::ffi::c_int;

use roxie::transport::{Access, MwBind, SendFlags, VerbsError};
use roxie::verbs::{Mw, MwType};
use roxie::wire::{Lkey, Rkey};

use crate::abi::objects::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use crate::errno::{code, null};
use crate::object::Object;

use super::pd_mr::{MrObject, PdObject};
use super::qp::QpObject;

pub(crate) type MwObject = Object<ibv_mw, Mw>;

/// The operation behind `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, ty: c_int) -> *mut ibv_mw {
    /// IBV_MW_TYPE_1 and 2.
    const TYPES: [(c_int, MwType); 2] = [(1, MwType::Type1), (2, MwType::Type2)];
    // SAFETY: a domain of ours or NULL.
    let Some(object) = (unsafe { PdObject::from_ptr(pd) }) else { return null(libc::EINVAL) };
    let Some((_, kind)) = TYPES.into_iter().find(|(number, _)| *number == ty) else {
        return null(libc::EINVAL);
    };
    match object.tail.alloc_mw(kind) {
        Ok(mw) => {
            // SAFETY: `pd` is one of ours.
            let context = unsafe { (*pd).context };
            let rkey = mw.rkey().0;
            MwObject::export(ibv_mw { context, pd, rkey, handle: rkey >> 8, r#type: ty }, mw)
        }
        Err(error) => null(error.errno()),
    }
}

/// The operation behind `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the inline function reads a member first, so it is not NULL; the caller gives it up.
    drop(unsafe { MwObject::retire(mw) });
    0
}

/// The operation behind `ibv_bind_mw`: type 1, whose next key the library chooses.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: ours or NULL; NULL or the program's structure.
    let (Some(qp), Some(object), Some(bind)) =
        (unsafe { (QpObject::from_qp(qp), MwObject::from_ptr(mw), bind.as_ref()) })
    else {
        return code(libc::EINVAL);
    };
    let Some(flags) = SendFlags::from_bits(bind.send_flags) else { return code(libc::EINVAL) };
    // SAFETY: as the caller's.
    let asked = unsafe { bind_of(&object.tail, object.tail.rkey().0, &bind.bind_info) };
    match asked.and_then(|asked| qp.tail.qp.bind_mw(&object.tail, bind.wr_id, flags, &asked)) {
        Ok(r_key) => {
            // SAFETY: a member of a live object.
            unsafe { (*mw).rkey = r_key.0 };
            0
        }
        Err(error) => code(error.errno()),
    }
}

/// The bind that a work request asks for. A key that is not one of this window is a mistake at once.
///
/// # Safety
/// `mw` and the region in `info` are NULL or ours.
pub(crate) unsafe fn wr_bind(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<MwBind, VerbsError> {
    // SAFETY: upheld by the caller.
    let object = unsafe { MwObject::from_ptr(mw) }.ok_or(VerbsError::Invalid)?;
    if object.tail.ty() != MwType::Type2 {
        return Err(VerbsError::Invalid);
    }
    // SAFETY: upheld by the caller.
    unsafe { bind_of(&object.tail, rkey, info) }
}

/// # Safety
/// The region in `info` is NULL or ours.
unsafe fn bind_of(mw: &Mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<MwBind, VerbsError> {
    if (mw.rkey().0 ^ rkey) & !0xff != 0 {
        return Err(VerbsError::Invalid);
    }
    let access = Access::from_bits(info.mw_access_flags).ok_or(VerbsError::Invalid)?;
    // SAFETY: upheld by the caller.
    let region = unsafe { MrObject::from_ptr(info.mr) };
    if region.is_none() && info.length != 0 {
        return Err(VerbsError::Invalid);
    }
    // SAFETY: a member of a live object.
    let mr = Lkey(region.map_or(0, |region| unsafe { (*region.public()).lkey }));
    Ok(MwBind { r_key: Rkey(rkey), mr, addr: info.addr, len: info.length, access })
}
