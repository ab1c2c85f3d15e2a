//! The work request builder (ibv_wr_post(3)): `wr_start`, operations and their setters, `wr_complete`.
//!
//! A QP collects its requests in storage that is allocated with the QP. `wr_complete` posts them together.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;

use libc::{pthread_mutex_t, size_t};
use roxie::transport::{Dest, QpCap, QpType, SendFlags, SendWr, Sge, VerbsError, WrOp, refuse};
use roxie::wire::{Lkey, Rkey};

use crate::abi::objects::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE,
    IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, ibv_mw, ibv_mw_bind_info, ibv_qp_ex,
};
use crate::abi::work::{IBV_WR_TSO, ibv_ah, ibv_data_buf};
use crate::errno::{code, known_bits, no_argument};
use crate::handle::{Hot, typed};

use super::ah::AhObject;
use super::mw::{MwObject, wr_bind};
use super::pd_mr::MrObject;
use super::qp::QpObject;
use super::queue_pair::QueuePair;
use super::work::{no_operation, send_flags, ud_dest};

/// The operations of UD.
const UD_OPS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
/// The operations of UC.
const UC_OPS: u64 = UD_OPS
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW;
/// The operations of XRC.
const XRC_OPS: u64 = UC_OPS
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV;
/// The operations of RC.
const RC_OPS: u64 = XRC_OPS | IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;

/// Returns the operations of a QP of this type, bits of IBV_QP_EX_WITH_*.
pub(crate) fn operations(ty: QpType) -> u64 {
    match ty {
        QpType::XrcTgt => 0,
        QpType::XrcIni => XRC_OPS,
        QpType::Rc => RC_OPS,
        QpType::Uc => UC_OPS,
        QpType::Ud | QpType::Gsi => UD_OPS,
    }
}

/// The operations of a raw packet queue pair.
pub(crate) const RAW_OPS: u64 = IBV_QP_EX_WITH_SEND;

/// Checks that a queue pair with the operations `known` can do those that the application asks for.
pub(crate) fn check_ops(asked: Option<u64>, known: u64) -> Result<(), VerbsError> {
    known_bits!(Err; EOPNOTSUPP, "queue pair", "send_ops_flags"; asked.unwrap_or(0), known);
    Ok(())
}

/// The lock that the building thread holds from `wr_start` to `wr_complete` or `wr_abort`.
struct BuildLock(UnsafeCell<pthread_mutex_t>);

impl BuildLock {
    fn lock(&self) {
        // SAFETY: initialised, and at a fixed address inside the QP's allocation once the application can
        // call.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; the thread that locked it calls (ibv_wr_post(3)).
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

/// The requests that a QP collects between `wr_start` and `wr_complete`.
pub(crate) struct Builder {
    lock: BuildLock,
    batch: UnsafeCell<Batch>,
}

// SAFETY: only the thread that holds `lock` accesses `batch`.
unsafe impl Sync for Builder {}

pub(crate) struct Batch {
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

    /// Records the first error; `wr_complete` returns it.
    fn fail(&mut self, error: VerbsError) {
        self.error.get_or_insert(error);
    }

    fn begin(&mut self, wr_id: u64, flags: u32, op: WrOp) {
        let flags = match send_flags(flags) {
            Ok(flags) => flags,
            Err(refused) => return self.fail(refused),
        };
        let room = self.requests.capacity();
        if self.requests.len() == room {
            return self.fail(refuse!(ENOMEM, "send queue", "max_send_wr"; room;
                "more than max_send_wr {room} requests between ibv_wr_start and ibv_wr_complete"));
        }
        let data = Data::Sges(0..0);
        self.requests.push(Request { wr_id, op, flags, dest: None, data });
    }

    fn last(&mut self) -> Option<&mut Request> {
        if self.requests.is_empty() {
            let requests = 0;
            self.fail(refuse!(EINVAL, "work request", "setter"; requests;
                "a setter of the builder was called before an operation"));
        }
        self.requests.last_mut()
    }

    fn set_dest(&mut self, dest: Dest) {
        if let Some(request) = self.last() {
            request.dest = Some(dest);
        }
    }

    fn set_sges(&mut self, list: &[Sge]) {
        if self.sges.capacity() - self.sges.len() < list.len() {
            let (count, room) = (list.len(), self.sges.capacity() - self.sges.len());
            return self.fail(refuse!(EINVAL, "work request", "num_sge"; count, room;
                "{count} elements, the batch has room for {room} more"));
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
                let (length, room) = (piece.len(), self.inline.capacity() - self.inline.len());
                return self.fail(refuse!(EINVAL, "work request", "length"; length, room;
                    "{length} bytes of inline data, the batch has room for {room} more"));
            }
            self.inline.extend_from_slice(piece);
        }
        let data = Data::Inline(start..self.inline.len());
        if let Some(request) = self.last() {
            request.data = data;
        }
    }

    /// Posts the collected requests. Those before a refused request stay posted, unlike in a hardware queue.
    pub(crate) fn post(&self, qp: &QueuePair) -> Result<(), VerbsError> {
        let mut copied = [Sge::default()];
        match qp {
            QueuePair::Transport(qp) => {
                let mut batch = qp.begin_post();
                self.requests.iter().try_for_each(|request| batch.send(&self.send_wr(request, &mut copied)))
            }
            QueuePair::Raw(raw) => self.requests.iter().try_for_each(|request| {
                let wr = self.send_wr(request, &mut copied);
                raw.post_send(std::iter::once(Ok(wr))).map_err(|(_posted, error)| error)
            }),
        }
    }

    /// Calls `f` with each request.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&SendWr<'_>)) {
        self.requests.iter().for_each(|request| f(&self.send_wr(request, &mut [Sge::default()])));
    }

    /// Returns a request in the terms of the transport; `copied` holds the place of its inline data.
    #[inline(always)]
    fn send_wr<'a>(&'a self, request: &Request, copied: &'a mut [Sge; 1]) -> SendWr<'a> {
        let Request { wr_id, op, flags, dest, ref data } = *request;
        let (sg_list, flags) = match data {
            Data::Sges(range) => (&self.sges[range.clone()], flags & !SendFlags::INLINE),
            Data::Inline(range) => {
                let bytes = &self.inline[range.clone()];
                *copied = [Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: Lkey(0) }];
                (&copied[..], flags | SendFlags::INLINE)
            }
        };
        SendWr { wr_id, op, sg_list, flags, dest }
    }
}

/// Sets every function of the builder. Those that the device does not support make `wr_complete` fail.
pub(crate) fn fill_operations(qp: &mut ibv_qp_ex) {
    set!(qp;
        wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write,
        wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn,
        wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete,
        wr_abort, wr_atomic_write, wr_flush);
}

/// Calls `f` with the batch that the calling thread builds; `None` for NULL and for a QP without a builder.
///
/// # Safety
/// `qp` is an argument of a C function, and the calling thread is between `wr_start` and `wr_complete`
/// (ibv_wr_post(3)).
#[inline(always)]
unsafe fn building<R>(qp: *mut ibv_qp_ex, f: impl FnOnce(&mut Batch, &QpObject) -> R) -> Option<R> {
    // SAFETY: an argument of a C function.
    let qp: Option<&QpObject> = unsafe { typed(Hot(qp)) };
    let qp = qp?;
    let builder = qp.tail.builder.as_ref()?;
    // SAFETY: the calling thread holds the lock, and no reference into the batch outlives `f`.
    Some(f(unsafe { &mut *builder.batch.get() }, qp))
}

/// Starts a request with the ID and flags that the application wrote into the structure.
#[inline(always)]
fn begin(batch: &mut Batch, qp: &QpObject, op: WrOp) {
    batch.begin(qp.wr_id().get(), qp.wr_flags().get(), op);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: ibv_wr_post(3).
    let object: Option<&QpObject> = unsafe { typed(Hot(qp)) };
    if let Some(builder) = object.and_then(|qp| qp.tail.builder.as_ref()) {
        builder.lock.lock();
        // SAFETY: the calling thread holds the lock.
        unsafe { &mut *builder.batch.get() }.clear();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: ibv_wr_post(3).
    unsafe { complete(qp, |batch, qp| batch.post(&qp.tail.qp)) }
}

/// Posts the batch that the calling thread has built, and ends it.
///
/// # Safety
/// As [`building`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn complete(
    qp: *mut ibv_qp_ex,
    post: impl FnOnce(&mut Batch, &QpObject) -> Result<(), VerbsError>,
) -> c_int {
    // SAFETY: the caller's promise.
    let posted = unsafe {
        let posted = building(qp, |batch, qp| match batch.error {
            Some(error) => Err(error),
            None => post(batch, qp),
        });
        wr_abort(qp);
        posted
    };
    match posted {
        Some(Ok(())) => 0,
        Some(Err(error)) => code(error),
        None => code(no_argument!("qp")),
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: ibv_wr_post(3).
    let qp: Option<&QpObject> = unsafe { typed(Hot(qp)) };
    if let Some(builder) = qp.and_then(|qp| qp.tail.builder.as_ref()) {
        builder.lock.unlock();
    }
}

/// Functions of the builder that follow no pointer but that of the QP.
macro_rules! functions {
    ($($name:ident($($arg:ident: $ty:ty),*) |$batch:pat_param, $qp:pat_param| $body:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
            // SAFETY: ibv_wr_post(3).
            unsafe { building(qp, |$batch, $qp| $body) };
        }
    )*};
}

/// Functions that start a request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $ty:ty),*) => $op:expr;)*) => {
        functions! { $($name($($arg: $ty),*) |batch, qp| begin(batch, qp, $op);)* }
    };
}

operations! {
    wr_rdma_write(rkey: u32, remote_addr: u64) => WrOp::Write { remote_addr, r_key: Rkey(rkey) };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) =>
        WrOp::WriteImm { remote_addr, r_key: Rkey(rkey), imm: imm.to_ne_bytes() };
    wr_rdma_read(rkey: u32, remote_addr: u64) => WrOp::Read { remote_addr, r_key: Rkey(rkey) };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =>
        WrOp::CompareSwap { remote_addr, r_key: Rkey(rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =>
        WrOp::FetchAdd { remote_addr, r_key: Rkey(rkey), add };
    wr_send() => WrOp::Send;
    wr_send_imm(imm: u32) => WrOp::SendImm(imm.to_ne_bytes());
    wr_send_inv(rkey: u32) => WrOp::SendInv(Rkey(rkey));
    wr_local_inv(rkey: u32) => WrOp::LocalInv(Rkey(rkey));
}

pub(crate) unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: ibv_wr_post(3).
    unsafe {
        let ah: Option<&AhObject> = typed(Hot(ah));
        building(qp, |batch, _| match ud_dest(ah, remote_qpn, remote_qkey) {
            Ok(dest) => batch.set_dest(Dest::Ud(dest)),
            Err(error) => batch.fail(error),
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const Sge) {
    // SAFETY: ibv_wr_post(3).
    unsafe {
        let list: Option<&[Sge]> = typed((list, count));
        building(qp, |batch, _| match list {
            Some(list) => batch.set_sges(list),
            None => batch.fail(no_argument!("sg_list")),
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
    // SAFETY: ibv_wr_post(3).
    unsafe {
        let data: &[u8] = typed((addr.cast_const(), length));
        building(qp, |batch, _| batch.set_inline([data].into_iter()));
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_data_buf) {
    // SAFETY: ibv_wr_post(3).
    unsafe {
        let list: Option<&[ibv_data_buf]> = typed((list, count));
        building(qp, |batch, _| match list {
            Some(list) => {
                batch.set_inline(list.iter().map(|buf| typed((buf.addr.cast_const(), buf.length))));
            }
            None => batch.fail(no_argument!("buf_list")),
        });
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: ibv_wr_post(3); the structure names a region.
    unsafe {
        let (mw, info): (Option<&MwObject>, Option<&ibv_mw_bind_info>) = typed((mw, info));
        let bind = info.ok_or_else(|| no_argument!("bind_info")).and_then(|info| {
            let region: Option<&MrObject> = typed(info.mr);
            wr_bind(mw, rkey, info, region)
        });
        building(qp, |batch, qp| match bind {
            Ok(bind) => begin(batch, qp, WrOp::BindMw(bind)),
            Err(error) => batch.fail(error),
        });
    }
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, data: *const c_void) {
    // SAFETY: ibv_wr_post(3): eight bytes, which are copied here.
    unsafe {
        let data: Option<&[u8; 8]> = typed(data.cast());
        building(qp, |batch, qp| match data {
            Some(data) => {
                begin(batch, qp, WrOp::AtomicWrite { remote_addr, r_key: Rkey(rkey) });
                batch.set_inline([&data[..]].into_iter());
            }
            None => batch.fail(no_argument!("atomic_wr")),
        });
    }
}

functions! {
    wr_set_xrc_srqn(remote_srqn: u32) |batch, _| batch.set_dest(Dest::Srq(remote_srqn));
    wr_set_sge(lkey: u32, addr: u64, length: u32)
        |batch, _| batch.set_sges(&[Sge { addr, length, lkey: Lkey(lkey) }]);
    wr_send_tso(_header: *mut c_void, _length: u16, _mss: u16)
        |batch, _| batch.fail(no_operation(IBV_WR_TSO));
    wr_flush(rkey: u32, remote_addr: u64, length: size_t, placement: u8, selectivity: u8)
        |batch, qp| match u32::try_from(length) {
            Ok(length) => {
                let r_key = Rkey(rkey);
                begin(batch, qp, WrOp::Flush { remote_addr, r_key, length, placement, selectivity });
            }
            Err(_) => batch.fail(refuse!(EINVAL, "work request", "length"; length;
                is "{length}, the length of a FLUSH has 32 bits")),
        };
}
