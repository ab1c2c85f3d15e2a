//! Buffers of the library (ibv_alloc_buf(3)), and registration with attributes (ibv_reg_mr_ex(3)) and of
//! dma-bufs (ibv_reg_dmabuf_mr(3)).

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;

use libc::size_t;

use crate::abi::memory::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET,
    IBV_REG_MR_MASK_IOVA, ibv_buf, ibv_mr_init_attr,
};
use crate::abi::objects::{ibv_mr, ibv_pd};
use crate::errno::{done, failed, given, known_bits, minus1, needed_bits, no_argument, no_memory, null};
use crate::handle::{GivenUp, Out, typed};
use crate::object::{BUFFERS, Object};
use roxie::transport::{VerbsError, refuse};

use super::pd_mr::{self, PdObject, ibv_reg_mr_iova2};

type BufObject = Object<[u8; 0], BufTail>;

/// Memory of the C heap, which a forked child keeps a copy of.
struct BufTail {
    /// Address of the protection domain that it was allocated from.
    pd: usize,
    addr: usize,
    size: usize,
}

impl Drop for BufTail {
    fn drop(&mut self) {
        // SAFETY: allocated by `ibv_alloc_buf`, and freed once.
        unsafe { libc::free(self.addr as *mut c_void) };
    }
}

pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: size_t,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    // SAFETY: ibv_alloc_buf(3).
    let (domain, room): (Option<&PdObject>, Option<Out<*mut ibv_buf>>) = unsafe { typed((pd, buf)) };
    given!(null; domain as "pd", room as "buf");
    let mut start = ptr::null_mut();
    // SAFETY: asks for a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    // SAFETY: there is room for a pointer, and a page is a power of two.
    let failed = unsafe { libc::posix_memalign(&raw mut start, page, size.max(1)) };
    if failed != 0 {
        return null(no_memory!("buffer"));
    }
    let tail = BufTail { pd: pd.addr(), addr: start.addr(), size };
    room.write(BUFFERS.insert(BufObject::export([], tail)).cast());
    start
}

pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    let buf: *mut [u8; 0] = buf.cast();
    // SAFETY: ibv_alloc_buf(3).
    let given_up: Option<GivenUp<BufObject>> = unsafe { typed(buf) };
    if let Some(given_up) = given_up.filter(|_| BUFFERS.remove(buf)) {
        given_up.free();
    }
}

/// Fails with `ENODATA`: no dma-buf is behind a buffer.
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    let fd = -1;
    minus1(refuse!(ENODATA, "buffer", "fd"; fd; "no dma-buf is behind a buffer of ibv_alloc_buf"))
}

pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_alloc_buf(3).
    unsafe {
        let buf: Option<&BufObject> = typed(buf.cast::<[u8; 0]>());
        match check_buf(buf, pd, addr, length) {
            Ok(()) => ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as u32),
            Err(errno) => null(errno),
        }
    }
}

/// Checks that a range lies in a buffer of this domain.
fn check_buf(
    buf: Option<&BufObject>,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
) -> Result<(), VerbsError> {
    let BufTail { pd: domain, addr: first, size } = &buf.ok_or_else(|| no_argument!("buf"))?.tail;
    let (addr, size) = (addr.addr(), *size);
    let offset = addr.checked_sub(*first);
    if offset.and_then(|offset| size.checked_sub(offset)).is_none_or(|room| length > room) {
        return Err(refuse!(EINVAL, "buffer", "addr"; addr, length, size;
            "{length} bytes at {addr:#x} are not inside the buffer of {size} bytes"));
    }
    if pd.addr() != *domain {
        let pd = pd.addr();
        return Err(refuse!(EINVAL, "buffer", "pd"; pd; "the buffer was allocated from another domain"));
    }
    Ok(())
}

/// Registers memory of the application, a buffer or a dma-buf. There are no DMA handles.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    const FILE: u64 = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
    const KNOWN: u64 = FILE | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF;
    // SAFETY: ibv_reg_mr_ex(3). Members that `comp_mask` does not declare are not accessed: programs built
    // with older headers lack the last.
    let attr: Option<&ibv_mr_init_attr> = unsafe { typed(attr.cast_const()) };
    given!(null; attr);
    known_bits!(null; EOPNOTSUPP, "memory region", "comp_mask"; attr.comp_mask, KNOWN);
    let has = |mask| attr.comp_mask & mask != 0;
    let access = attr.access as u32;
    if has(FILE) {
        if has(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF) || !has(IBV_REG_MR_MASK_FD) {
            let comp_mask = attr.comp_mask;
            return null(refuse!(EINVAL, "memory region", "comp_mask"; comp_mask;
                is "{comp_mask:#x}: a dma-buf needs its descriptor, and has no address and no buffer"));
        }
        let offset = if has(IBV_REG_MR_MASK_FD_OFFSET) { attr.fd_offset } else { 0 };
        let iova = if has(IBV_REG_MR_MASK_IOVA) { attr.iova } else { offset };
        // SAFETY: ibv_reg_mr_ex(3).
        return unsafe { reg_dmabuf(pd, offset, attr.length, iova, attr.fd, access) };
    }
    needed_bits!(null; "memory region", "comp_mask"; attr.comp_mask, IBV_REG_MR_MASK_ADDR);
    if has(IBV_REG_MR_MASK_BUF) {
        // SAFETY: ibv_alloc_buf(3).
        let buf: Option<&BufObject> = unsafe { typed(attr.buf.cast::<[u8; 0]>()) };
        if let Err(errno) = check_buf(buf, pd, attr.addr, attr.length) {
            return null(errno);
        }
    }
    let iova = if has(IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.addr as u64 };
    // SAFETY: ibv_reg_mr_ex(3).
    unsafe { ibv_reg_mr_iova2(pd, attr.addr, attr.length, iova, access) }
}

pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: size_t,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_dmabuf_mr(3).
    unsafe { reg_dmabuf(pd, offset, length, iova, fd, access as u32) }
}

/// Registers a part of a dma-buf.
///
/// # Safety
/// As for [`typed`] with `pd`.
#[track_caller]
unsafe fn reg_dmabuf(
    pd: *mut ibv_pd,
    offset: u64,
    length: size_t,
    iova: u64,
    fd: c_int,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract.
    let pd: Option<&PdObject> = unsafe { typed(pd) };
    given!(null; pd);
    // NCCL, UCX and libfabric ask with this descriptor whether GPU memory can be registered. It cannot: its
    // drivers let no process map it. `EBADF` would say that it can.
    if fd < 0 {
        return null(refuse!(EOPNOTSUPP, "memory region", "fd"; fd as i32; is "{fd}: no dma-buf"));
    }
    // SAFETY: not negative. The application keeps its descriptor open during the call, or the call fails.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let access = done!(null; pd_mr::rights(access));
    let region = pd.tail.reg_dmabuf_mr(file, offset, length, iova, access);
    match region {
        Ok(mr) => {
            let rkey = mr.rkey().0;
            pd_mr::export(pd, offset as *mut c_void, length, mr, rkey)
        }
        Err(error) => null(failed!(error, "memory region", "fd"; "the dma-buf cannot be registered")),
    }
}
