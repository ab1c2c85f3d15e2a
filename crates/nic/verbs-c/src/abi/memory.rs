//! Device memory, buffers of the library, and the extended registration of memory.

use std::ffi::{c_int, c_void};

use libc::size_t;

use super::context::ibv_context;
use super::{constants, layouts};

#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, size_t) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, size_t) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_alloc_dm_attr {
    pub length: size_t,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

/// A handle without public members.
#[repr(C)]
pub struct ibv_buf {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ibv_mr_init_attr {
    pub length: size_t,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
    pub buf: *mut ibv_buf,
}

constants! {
    u64 {
        IBV_REG_MR_MASK_IOVA = 1,
        IBV_REG_MR_MASK_ADDR = 1 << 1,
        IBV_REG_MR_MASK_FD = 1 << 2,
        IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
        IBV_REG_MR_MASK_BUF = 1 << 5,
    }
}

layouts! {
    ibv_dm: 32 { context @ 0, memcpy_to_dm @ 8, memcpy_from_dm @ 16, comp_mask @ 24, handle @ 28 }
    ibv_alloc_dm_attr: 16 { length @ 0, log_align_req @ 8, comp_mask @ 12 }
    ibv_mr_init_attr: 72 {
        length @ 0, access @ 8, comp_mask @ 16, iova @ 24, addr @ 32, fd @ 40, fd_offset @ 48, dmah @ 56,
        buf @ 64,
    }
}
