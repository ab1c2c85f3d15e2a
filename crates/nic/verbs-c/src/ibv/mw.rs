//! Memory windows (ibv_alloc_mw(3)).

use std::ffi::c_int;

use roxie::transport::{Access, MwBind, VerbsError, refuse};
use roxie::verbs::{Mw, MwType};
use roxie::wire::{Lkey, Rkey};

use crate::abi::objects::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind_info, ibv_pd,
};
use crate::errno::{code, done, given, known_bits, null};
use crate::handle::{GivenUp, members, typed};
use crate::object::Object;

use super::handles::new_handle;
use super::pd_mr::{MrObject, PdObject};

pub(crate) type MwObject = Object<ibv_mw, Mw>;

members! { MwObject {
    rkey: rkey as u32;
} }

/// Implements `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, ty: c_int) -> *mut ibv_mw {
    // SAFETY: ibv_alloc_mw(3).
    let pd: Option<&PdObject> = unsafe { typed(pd) };
    given!(null; pd);
    let kind = match ty {
        IBV_MW_TYPE_1 => MwType::Type1,
        IBV_MW_TYPE_2 => MwType::Type2,
        _ => {
            return null(
                refuse!(EINVAL, "memory window", "type"; ty as i32; is "{ty}, the types are 1 and 2"),
            );
        }
    };
    let mw = done!(null; pd.tail.alloc_mw(kind));
    let (context, rkey) = (pd.context().get(), mw.rkey().0);
    MwObject::export(ibv_mw { context, pd: pd.public(), rkey, handle: new_handle(), r#type: ty }, mw)
}

/// Implements `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: ibv_dealloc_mw(3).
    let mw: Option<GivenUp<MwObject>> = unsafe { typed(mw) };
    given!(code; mw);
    mw.free();
    0
}

/// Returns the bind that a work request asks for, on `region`.
pub(crate) fn wr_bind(
    mw: Option<&MwObject>,
    rkey: u32,
    info: &ibv_mw_bind_info,
    region: Option<&MrObject>,
) -> Result<MwBind, VerbsError> {
    given!(Err; mw);
    if mw.tail.ty() != MwType::Type2 {
        return Err(refuse!(EINVAL, "memory window", "type"; rkey;
            "the window {rkey:#010x} is of type 1: ibv_bind_mw binds it"));
    }
    // The application chooses the low 8 bits of the key. The others name the window, whatever they are in the
    // request (Linux rxe_do_bind_mw, mlx5 set_umr_mkey_seg).
    bind_of((mw.tail.rkey().0 & !0xff) | (rkey & 0xff), info, region)
}

pub(super) fn bind_of(
    rkey: u32,
    info: &ibv_mw_bind_info,
    region: Option<&MrObject>,
) -> Result<MwBind, VerbsError> {
    let length = info.length;
    let flags = info.mw_access_flags & !IBV_ACCESS_OPTIONAL_RANGE;
    known_bits!(Err; EINVAL, "memory window", "mw_access_flags"; flags, Access::all().bits());
    let access = Access::from_bits_truncate(flags);
    if region.is_none() && length != 0 {
        return Err(refuse!(EINVAL, "memory window", "mr"; length;
            "{length} bytes of no region; without a region the length is 0"));
    }
    let mr = Lkey(region.map_or(0, |region| region.lkey().get()));
    Ok(MwBind { r_key: Rkey(rkey), mr, addr: info.addr, len: info.length, access })
}
