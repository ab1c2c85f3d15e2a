//! The work request builder (ibv_wr_post(3)): `wr_start`, operations and their setters, `wr_complete`.
//!
//! Requests are gathered in storage that is allocated with the QP, and posted together at `wr_complete`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;

use libc::{pthread_mutex_t, size_t};
use roxie::transport::{Dest, QpCap, QpType, SendFlags, SendWr, Sge, VerbsError, WrOp};
use roxie::verbs::Qp;
use roxie::wire::{Lkey, Rkey};

use crate::abi::objects::{ibv_mw, ibv_mw_bind_info, ibv_qp_ex};
use crate::abi::work::{ibv_ah, ibv_data_buf};
use crate::errno::code;

use super::mw::wr_bind;
use super::post::ud_dest;
use super::qp::QpObject;

/// Bits of `send_ops_flags` (IBV_QP_EX_WITH_*).
const WRITE: u64 = 1;
const WRITE_IMM: u64 = 1 << 1;
const SEND: u64 = 1 << 2;
const SEND_IMM: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const ATOMICS: u64 = 1 << 5 | 1 << 6;
const LOCAL_INV: u64 = 1 << 7;
const BIND_MW: u64 = 1 << 8;
const SEND_INV: u64 = 1 << 9;
const FLUSH: u64 = 1 << 11;
const ATOMIC_WRITE: u64 = 1 << 12;

/// All that XRC has.
const XRC: u64 = WRITE | WRITE_IMM | SEND | SEND_IMM | READ | ATOMICS | LOCAL_INV | BIND_MW | SEND_INV;

/// Whether a QP of this type can do all these operations.
pub(crate) fn supports(ty: QpType, ops: u64) -> bool {
    let can = match ty {
        QpType::XrcTgt => 0,
        QpType::XrcIni => XRC,
        QpType::Rc => XRC | FLUSH | ATOMIC_WRITE,
        QpType::Uc => WRITE | WRITE_IMM | SEND | SEND_IMM | LOCAL_INV | BIND_MW,
        QpType::Ud | QpType::Gsi => SEND | SEND_IMM,
    };
    ops & !can == 0
}

/// Held by the thread that builds, from `wr_start` to `wr_complete` or `wr_abort`.
struct BuildLock(UnsafeCell<pthread_mutex_t>);

impl BuildLock {
    fn lock(&self) {
        // SAFETY: initialised, and at a fixed address inside the QP's allocation once the program can call.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; only called by the thread that locked it (ibv_wr_post(3)).
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

/// What a QP gathers between `wr_start` and `wr_complete`.
pub(crate) struct Builder {
    lock: BuildLock,
    batch: UnsafeCell<Batch>,
}

// SAFETY: `batch` is only touched by the thread that holds `lock`.
unsafe impl Sync for Builder {}

struct Batch {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    error: Option<VerbsError>,
}

struct Request {
    wr_id: u64,
    op: WrOp,
    flags: SendFlags,
    dest: Option<Dest>,
    data: Data,
}

enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Builder {
    pub(crate) fn new(cap: &QpCap) -> Self {
        let requests = cap.max_send_wr as usize;
        let batch = Batch {
            requests: Vec::with_capacity(requests),
            sges: Vec::with_capacity(requests * cap.max_send_sge as usize),
            inline: Vec::with_capacity(requests * cap.max_inline_data as usize),
            error: None,
        };
        let lock = BuildLock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        Self { lock, batch: UnsafeCell::new(batch) }
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    /// Remembers the first mistake; `wr_complete` reports it.
    fn fail(&mut self, error: VerbsError) {
        self.error.get_or_insert(error);
    }

    fn begin(&mut self, wr_id: u64, flags: u32, op: WrOp) {
        let Some(flags) = SendFlags::from_bits(flags) else { return self.fail(VerbsError::Invalid) };
        if self.requests.len() == self.requests.capacity() {
            return self.fail(VerbsError::NoMem);
        }
        let data = Data::Sges(0..0);
        self.requests.push(Request { wr_id, op, flags, dest: None, data });
    }

    fn last(&mut self) -> Option<&mut Request> {
        if self.requests.is_empty() {
            self.fail(VerbsError::Invalid);
        }
        self.requests.last_mut()
    }

    fn set_sges(&mut self, list: &[Sge]) {
        if self.sges.capacity() - self.sges.len() < list.len() {
            return self.fail(VerbsError::Invalid);
        }
        let start = self.sges.len();
        self.sges.extend_from_slice(list);
        let data = Data::Sges(start..self.sges.len());
        if let Some(request) = self.last() {
            request.data = data;
        }
    }

    fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let start = self.inline.len();
        for piece in pieces {
            if self.inline.capacity() - self.inline.len() < piece.len() {
                return self.fail(VerbsError::Invalid);
            }
            self.inline.extend_from_slice(piece);
        }
        let data = Data::Inline(start..self.inline.len());
        if let Some(request) = self.last() {
            request.data = data;
        }
    }

    /// Posts everything gathered. Unlike a hardware queue it cannot take back what precedes a refused request.
    fn post(&self, qp: &Qp) -> Result<(), VerbsError> {
        let mut batch = qp.begin_post();
        for Request { wr_id, op, flags, dest, data } in &self.requests {
            let copied;
            let (sg_list, flags) = match data {
                Data::Sges(range) => (&self.sges[range.clone()], *flags & !SendFlags::INLINE),
                Data::Inline(range) => {
                    let bytes = &self.inline[range.clone()];
                    copied = [Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: Lkey(0) }];
                    (&copied[..], *flags | SendFlags::INLINE)
                }
            };
            batch.send(&SendWr { wr_id: *wr_id, op: *op, sg_list, flags, dest: *dest })?;
        }
        Ok(())
    }
}

/// Fills in every function of the builder; those the device cannot do make `wr_complete` fail.
pub(crate) fn fill_operations(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}

/// Gives `f` the batch that is being built.
///
/// # Safety
/// `qp` is NULL or ours, and the calling thread is between `wr_start` and `wr_complete`.
#[inline]
unsafe fn with<R>(qp: *mut ibv_qp_ex, f: impl FnOnce(&mut Batch, &Qp) -> R) -> Option<R> {
    // SAFETY: upheld by the caller.
    let object = unsafe { QpObject::from_ptr(qp) }?;
    let builder = object.tail.builder.as_ref()?;
    // SAFETY: the calling thread holds the lock, and no reference into the batch outlives `f`.
    Some(f(unsafe { &mut *builder.batch.get() }, &object.tail.qp))
}

/// Starts a request with the id and flags that the program wrote into the structure.
///
/// # Safety
/// As [`with`].
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, op: WrOp) {
    // SAFETY: upheld by the caller; the program's own thread wrote the two members.
    unsafe { with(qp, |batch, _| batch.begin((*qp).wr_id, (*qp).wr_flags, op)) };
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { QpObject::from_ptr(qp) }) else { return };
    if let Some(builder) = &object.tail.builder {
        builder.lock.lock();
        // SAFETY: the lock is held.
        unsafe { with(qp, |batch, _| batch.clear()) };
    }
}

/// # Safety
/// As [`with`]; the batch is not touched afterwards.
unsafe fn release(qp: *mut ibv_qp_ex) {
    // SAFETY: upheld by the caller.
    let object = unsafe { QpObject::from_ptr(qp) };
    if let Some(builder) = object.and_then(|o| o.tail.builder.as_ref()) {
        builder.lock.unlock();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program called wr_start before.
    let posted = unsafe {
        let posted = with(qp, |batch, qp| batch.error.map_or_else(|| batch.post(qp), Err));
        release(qp);
        posted
    };
    match posted {
        Some(Ok(())) => 0,
        Some(Err(error)) => code(error.errno()),
        None => code(libc::EINVAL),
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program called wr_start before.
    unsafe { release(qp) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::Write { remote_addr, r_key: Rkey(rkey) }) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm: u32) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::WriteImm { remote_addr, r_key: Rkey(rkey), imm: imm.to_ne_bytes() }) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::Read { remote_addr, r_key: Rkey(rkey) }) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::CompareSwap { remote_addr, r_key: Rkey(rkey), compare, swap }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::FetchAdd { remote_addr, r_key: Rkey(rkey), add }) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::Send) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::SendImm(imm.to_ne_bytes())) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::SendInv(Rkey(rkey))) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: one of ours or NULL.
    let dest = unsafe { ud_dest(ah, remote_qpn, remote_qkey) };
    let set = |batch: &mut Batch, _: &Qp| match dest {
        Ok(dest) => {
            if let Some(request) = batch.last() {
                request.dest = Some(Dest::Ud(dest));
            }
        }
        Err(error) => batch.fail(error),
    };
    // SAFETY: between wr_start and wr_complete.
    unsafe { with(qp, set) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { with(qp, |batch, _| batch.set_sges(&[Sge { addr, length, lkey: Lkey(lkey) }])) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const Sge) {
    let list = match count {
        0 => &[],
        // SAFETY: the caller passes `count` elements.
        _ if !list.is_null() => unsafe { slice::from_raw_parts(list, count) },
        _ => return fail(qp, VerbsError::Invalid),
    };
    // SAFETY: between wr_start and wr_complete.
    unsafe { with(qp, |batch, _| batch.set_sges(list)) };
}

/// The bytes of one inline piece.
///
/// # Safety
/// `addr` has `length` bytes.
unsafe fn piece<'a>(addr: *const c_void, length: size_t) -> &'a [u8] {
    if addr.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: upheld by the caller.
    unsafe { slice::from_raw_parts(addr.cast(), length) }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
    // SAFETY: the caller's bytes; between wr_start and wr_complete.
    unsafe { with(qp, |batch, _| batch.set_inline([piece(addr, length)].into_iter())) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_data_buf) {
    let list = match count {
        0 => &[],
        // SAFETY: the caller passes `count` elements.
        _ if !list.is_null() => unsafe { slice::from_raw_parts(list, count) },
        _ => return fail(qp, VerbsError::Invalid),
    };
    // SAFETY: the caller's bytes.
    let pieces = list.iter().map(|buf| unsafe { piece(buf.addr, buf.length) });
    // SAFETY: between wr_start and wr_complete.
    unsafe { with(qp, |batch, _| batch.set_inline(pieces)) };
}

/// Makes the coming `wr_complete` fail.
fn fail(qp: *mut ibv_qp_ex, error: VerbsError) {
    // SAFETY: only called by functions that programs call between wr_start and wr_complete.
    unsafe { with(qp, |batch, _| batch.fail(error)) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: NULL or the program's structure.
    let info = unsafe { info.as_ref() }.ok_or(VerbsError::Invalid);
    // SAFETY: the window and the region are the program's.
    match info.and_then(|info| unsafe { wr_bind(mw, rkey, info) }) {
        // SAFETY: between wr_start and wr_complete.
        Ok(bind) => unsafe { begin(qp, WrOp::BindMw(bind)) },
        Err(error) => fail(qp, error),
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::LocalInv(Rkey(rkey))) };
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _length: u16, _mss: u16) {
    fail(qp, VerbsError::NotSupported);
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    let set = |batch: &mut Batch, _: &Qp| {
        if let Some(request) = batch.last() {
            request.dest = Some(Dest::Srq(remote_srqn));
        }
    };
    // SAFETY: between wr_start and wr_complete.
    unsafe { with(qp, set) };
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, data: *const c_void) {
    if data.is_null() {
        return fail(qp, VerbsError::Invalid);
    }
    // SAFETY: between wr_start and wr_complete; the caller passes eight bytes, which are taken over here.
    unsafe {
        begin(qp, WrOp::AtomicWrite { remote_addr, r_key: Rkey(rkey) });
        with(qp, |batch, _| batch.set_inline([piece(data, size_of::<u64>())].into_iter()));
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    length: size_t,
    placement: u8,
    selectivity: u8,
) {
    let Ok(length) = u32::try_from(length) else { return fail(qp, VerbsError::Invalid) };
    let r_key = Rkey(rkey);
    // SAFETY: between wr_start and wr_complete.
    unsafe { begin(qp, WrOp::Flush { remote_addr, r_key, length, placement, selectivity }) };
}
