//! Protection domains, memory regions, address handles (ibv_alloc_pd(3), ibv_reg_mr(3), ibv_create_ah(3)).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use transport::{Access, AddressVector, PdId, Sge, VerbsError};
use wire::{Lkey, Rkey};

use super::{AsyncEvent, Context, Cq, FastMr, Mw, MwType, Qp, QpInitAttr, Srq, SrqInitAttr, Xrcd};
use crate::engine::Engine;
use crate::events::EventQueue;
use crate::keys::Range;
use crate::mr::DmaMemory;
use sys::guarded;

/// A protection domain: keys work only with queue pairs of the same domain.
#[derive(Clone)]
pub struct Pd(Arc<PdInner>);

struct PdInner {
    context: Context,
    engine: Arc<Engine>,
    id: PdId,
    /// What a parent domain stands for.
    _parent_of: Option<(Pd, Option<Td>)>,
}

/// A thread domain: a promise that one thread at a time uses what belongs to it. Nothing here locks less for it.
#[derive(Clone, Default)]
pub struct Td(Arc<()>);

impl Td {
    /// Whether a parent domain has it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Pd {
    pub(super) fn new(context: Context, engine: Arc<Engine>) -> Self {
        let id = PdId(engine.pd_ids.fetch_add(1, Ordering::Relaxed));
        Self(Arc::new(PdInner { context, engine, id, _parent_of: None }))
    }

    /// The device's first engine.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    pub(super) fn events(&self) -> &Arc<EventQueue<AsyncEvent>> {
        &self.0.context.0.events
    }

    pub(super) fn id(&self) -> PdId {
        self.0.id
    }

    /// A domain that is this one with a thread domain (ibv_alloc_parent_domain(3)): keys of either work with the other, and
    /// this one is in use as long as the parent is there.
    #[must_use]
    pub fn parent(&self, td: Option<&Td>) -> Self {
        let (context, engine, id) = (self.0.context.clone(), Arc::clone(&self.0.engine), self.0.id);
        Self(Arc::new(PdInner { context, engine, id, _parent_of: Some((self.clone(), td.cloned())) }))
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Whether regions, queues or address handles still use it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Registers `[addr, addr + len)`; peers and work requests address its first byte as `iova`.
    ///
    /// # Errors
    /// `Invalid` for remote write or atomic access without local write, or a range that wraps; `NoMem` when the
    /// table is full.
    ///
    /// # Safety
    /// Until the [`Mr`] is dropped the range is the device's to read, and to write if `access` asks for it: whatever is
    /// mapped there, no Rust reference may rely on its bytes staying put, because peers and the engine change them.
    /// Memory that is not mapped is an error of the transfer that meets it.
    pub unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        self.register(Range { base: addr as u64, len: len as u64, iova }, access)
    }

    /// Registers memory of the device's own; the caller keeps it until the region is dropped.
    pub(super) fn register_owned(&self, memory: &DmaMemory, access: Access) -> Result<Mr, VerbsError> {
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { memory.addr() };
        self.register(Range { base: memory.addr(), len: memory.len() as u64, iova }, access)
    }

    fn register(&self, range: Range, access: Access) -> Result<Mr, VerbsError> {
        guarded::watch();
        let key = self.0.engine.with_keys(|keys| keys.register(self.0.id, range, access))?;
        Ok(Mr(Arc::new(MrInner { pd: self.clone(), key, range, access })))
    }

    /// A region without memory: work requests read zeros there and write to nowhere, at any address; peers do not reach it
    /// (ibv_alloc_null_mr(3)).
    ///
    /// # Errors
    /// `NoMem` when the table of keys is full.
    pub fn alloc_null_mr(&self) -> Result<Mr, VerbsError> {
        let key = self.0.engine.with_keys(|keys| keys.register_null(self.0.id))?;
        let range = Range { base: 0, len: u64::MAX, iova: 0 };
        Ok(Mr(Arc::new(MrInner { pd: self.clone(), key, range, access: Access::LOCAL_WRITE })))
    }

    /// Where in this process the memory of a scatter/gather element lies.
    ///
    /// # Errors
    /// `Fault` if its key does not let work requests of this domain use it so.
    pub fn locate(&self, sge: &Sge, access: Access) -> Result<u64, VerbsError> {
        let core = self.0.engine.lock();
        let at = core.tables.mrs.local(self.0.id, sge.lkey.0, sge.addr, u64::from(sge.length), access);
        at.map_err(|_| VerbsError::Fault)
    }

    /// A memory window that is not bound.
    ///
    /// # Errors
    /// `NoMem` when the table of keys is full.
    pub fn alloc_mw(&self, ty: MwType) -> Result<Mw, VerbsError> {
        Mw::new(self, ty)
    }

    /// A region that REG_MR work requests make valid.
    ///
    /// # Errors
    /// `NoMem` when the table of keys is full.
    pub fn alloc_fast_mr(&self) -> Result<FastMr, VerbsError> {
        FastMr::new(self)
    }

    /// A queue pair in state RESET.
    ///
    /// # Errors
    /// `Invalid` for capacities beyond the device's limits, `NotSupported` for a type it does not have.
    pub fn create_qp(&self, init: &QpInitAttr) -> Result<Qp, VerbsError> {
        Qp::new(self, init)
    }

    /// A shared receive queue.
    ///
    /// # Errors
    /// `Invalid` for sizes beyond the device's limits.
    pub fn create_srq(&self, init: &SrqInitAttr) -> Result<Srq, VerbsError> {
        Srq::new(self, init, None)
    }

    /// A shared receive queue for XRC messages: they complete at `cq`.
    ///
    /// # Errors
    /// As [`Pd::create_srq`].
    pub fn create_xrc_srq(&self, init: &SrqInitAttr, xrcd: &Xrcd, cq: &Cq) -> Result<Srq, VerbsError> {
        Srq::new(self, init, Some((xrcd, cq)))
    }

    /// An address handle for UD sends.
    ///
    /// # Errors
    /// `Invalid` if the GID index is outside the table.
    pub fn create_ah(&self, av: &AddressVector) -> Result<Ah, VerbsError> {
        let gids = self.0.context.device().gids();
        gids.address(av.sgid_index).ok_or(VerbsError::Invalid)?;
        Ok(Ah { av: *av, pd: self.clone() })
    }
}

/// A memory region. Dropping the last clone deregisters it and unbinds its windows: afterwards nothing touches the memory.
#[derive(Clone)]
pub struct Mr(Arc<MrInner>);

struct MrInner {
    pd: Pd,
    key: u32,
    range: Range,
    access: Access,
}

/// What [`Mr::change`] changes; `None` leaves it as it is.
#[derive(Clone, Copy, Default)]
pub struct MrChange<'a> {
    /// Another protection domain.
    pub pd: Option<&'a Pd>,
    /// Another range: first byte, length, and the address that peers and work requests use for the first byte.
    pub range: Option<(*mut u8, usize, u64)>,
    /// Other rights.
    pub access: Option<Access>,
}

impl Drop for MrInner {
    fn drop(&mut self) {
        self.pd.engine().with_keys(|keys| keys.remove(self.key));
    }
}

impl Mr {
    /// Key for local work requests.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey(self.0.key)
    }

    /// Key to give to peers.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.0.key)
    }

    /// First byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.0.range.base
    }

    /// Address that peers and work requests use for the first byte: its own, or 0 in a zero-based region.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.0.range.iova
    }

    /// What it permits.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Whether windows are bound to it.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.0.pd.engine().with_keys(|keys| keys.has_windows(self.0.key))
    }

    /// Changes the region at once, all or nothing; its keys stay (ibv_rereg_mr(3)).
    ///
    /// # Errors
    /// `Busy` while windows are bound to it or another clone exists; `Invalid` as for [`Pd::reg_mr`].
    ///
    /// # Safety
    /// As [`Pd::reg_mr`], for what the region is afterwards.
    pub unsafe fn change(&mut self, to: &MrChange<'_>) -> Result<(), VerbsError> {
        let inner = Arc::get_mut(&mut self.0).ok_or(VerbsError::Busy)?;
        let range = to.range.map(|(addr, len, iova)| Range { base: addr as u64, len: len as u64, iova });
        let pd = to.pd.map(Pd::id);
        inner.pd.engine().with_keys(|keys| keys.change(inner.key, pd, range, to.access))?;
        inner.pd = to.pd.unwrap_or(&inner.pd).clone();
        inner.range = range.unwrap_or(inner.range);
        inner.access = to.access.unwrap_or(inner.access);
        Ok(())
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.range.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.range.len == 0
    }
}

/// An address handle: where a UD send goes.
#[derive(Clone)]
pub struct Ah {
    av: AddressVector,
    pd: Pd,
}

impl Ah {
    /// The address vector.
    #[must_use]
    pub fn av(&self) -> AddressVector {
        self.av
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}
