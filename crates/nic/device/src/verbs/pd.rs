//! Protection domains, memory regions, address handles (ibv_alloc_pd(3), ibv_reg_mr(3), ibv_create_ah(3)).

use std::any::Any;
use std::io;
use std::sync::Arc;

use transport::{Access, AddressVector, PdId, Sge, VerbsError, refuse};
use wire::{Lkey, Rkey};

use super::quota::Share;
use super::{AsyncEvent, Context, Device};
use crate::engine::Engine;
use crate::engine::owners::Owner;
use crate::events::EventQueue;
use crate::gid::refuse_gid_index;
use crate::guard;
use crate::keys::Range;
use crate::mr::DmaMemory;
use crate::same_device;

/// A protection domain: keys work only with queue pairs of the same domain.
#[derive(Clone)]
pub struct Pd(Arc<PdInner>);

struct PdInner {
    context: Context,
    engine: Arc<Engine>,
    id: Arc<PdId>,
    /// The domain that a parent domain refers to.
    parent_of: Option<(Pd, Option<Td>)>,
    _share: Share,
}

/// A thread domain: the application's promise that one thread at a time uses its objects. The device locks
/// all the same.
#[derive(Clone, Default)]
pub struct Td(Arc<()>);

impl Td {
    /// True if a parent domain refers to it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The engine cannot start: UDP port 4791 is taken, or the process is out of descriptors. `ENOMEM` at the
    /// limit of the device.
    pub fn alloc_pd(&self) -> io::Result<Pd> {
        let engine = self.device().engine()?;
        Pd::new(self.clone(), engine).map_err(io::Error::from)
    }
}

impl Pd {
    pub(super) fn new(context: Context, engine: Arc<Engine>) -> Result<Self, VerbsError> {
        let _share = context.quotas().pds.take()?;
        let id = engine.objects.add_pd(context.number());
        Ok(Self(Arc::new(PdInner { context, engine, id, parent_of: None, _share })))
    }

    /// Returns the device's first engine.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Returns the number of the engine for a new object of `owner`.
    pub(super) fn engine_for(&self, owner: Owner) -> usize {
        self.0.context.device().engine_for(&self.0.engine, owner)
    }

    pub(crate) fn device(&self) -> &Device {
        self.0.context.device()
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue<AsyncEvent>> {
        &self.0.context.0.events.queue
    }

    /// Returns its number on the device. Parent domains have that of their domain.
    #[must_use]
    pub fn id(&self) -> PdId {
        *self.0.id
    }

    /// Creates a parent domain of this domain and a thread domain (ibv_alloc_parent_domain(3)). Keys of
    /// either domain work with the other. This domain is in use as long as the parent domain exists.
    ///
    /// # Errors
    /// `ENOMEM` at the limit of the device.
    pub fn parent(&self, td: Option<&Td>) -> Result<Self, VerbsError> {
        let _share = self.0.context.quotas().pds.take()?;
        let (context, engine, id) =
            (self.0.context.clone(), Arc::clone(&self.0.engine), Arc::clone(&self.0.id));
        let parent_of = Some((self.clone(), td.cloned()));
        Ok(Self(Arc::new(PdInner { context, engine, id, parent_of, _share })))
    }

    /// Returns the context of the domain.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// True if this is a parent domain.
    #[must_use]
    pub fn is_parent(&self) -> bool {
        self.0.parent_of.is_some()
    }

    /// True if regions, queues or address handles still use it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Registers `[addr, addr + len)`; peers and work requests address its first byte as `iova`.
    ///
    /// # Errors
    /// `EINVAL` for remote write or atomic access without local write, or a range that wraps; `ENOMEM` when
    /// the table is full.
    ///
    /// # Safety
    /// Until the [`Mr`] is dropped the device may read the range, and write it if `access` permits that.
    /// Peers and the engine change its bytes at any time, so no Rust reference may rely on them. Memory that
    /// is not mapped fails only the transfer that reaches it.
    pub unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        self.register(Range { base: addr as u64, len: len as u64, iova }, access)
    }

    /// Registers memory that the device owns; the caller keeps it until the region is dropped.
    pub(super) fn register_owned(&self, memory: &DmaMemory, access: Access) -> Result<Mr, VerbsError> {
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { memory.addr() };
        self.register(Range { base: memory.addr(), len: memory.len() as u64, iova }, access)
    }

    fn register(&self, range: Range, access: Access) -> Result<Mr, VerbsError> {
        self.register_backed(range, access, None)
    }

    /// Registers a range; the region keeps `backing` until it is deregistered.
    pub(super) fn register_backed(
        &self,
        range: Range,
        access: Access,
        backing: Option<Backing>,
    ) -> Result<Mr, VerbsError> {
        guard::watch();
        let _share = self.0.context.quotas().mrs.take()?;
        let key = self.0.engine.with_keys(|keys| keys.register(self.id(), range, access))?;
        Ok(Mr(Arc::new(MrInner { pd: self.clone(), key, range, access, backing, _share })))
    }

    /// Allocates a region without memory (ibv_alloc_null_mr(3)). Work requests read zeros from it and discard
    /// what they write, at any address. Peers cannot access it.
    ///
    /// # Errors
    /// `ENOMEM` at the limit of the device.
    pub fn alloc_null_mr(&self) -> Result<Mr, VerbsError> {
        let _share = self.0.context.quotas().mrs.take()?;
        let key = self.0.engine.with_keys(|keys| keys.register_null(self.id()))?;
        let range = Range { base: 0, len: u64::MAX, iova: 0 };
        let access = Access::LOCAL_WRITE;
        Ok(Mr(Arc::new(MrInner { pd: self.clone(), key, range, access, backing: None, _share })))
    }

    /// Returns the address of a scatter/gather element's memory in this process.
    ///
    /// # Errors
    /// `EFAULT` if the key does not grant work requests of this domain that access.
    pub fn locate(&self, sge: &Sge, access: Access) -> Result<u64, VerbsError> {
        let core = self.0.engine.lock();
        let at = core.tables.mrs.local(self.id(), sge.lkey.0, sge.addr, u64::from(sge.length), access);
        at.map_err(|_| {
            let (addr, length, lkey) = (sge.addr, sge.length, sge.lkey.0);
            refuse!(EFAULT, "scatter/gather element", "lkey"; lkey, addr, length;
                "the key {lkey:#010x} does not permit access to {length} bytes at {addr:#x}")
        })
    }

    /// Creates an address handle for UD sends.
    ///
    /// # Errors
    /// `EINVAL` if the GID index is outside the table; `ENOMEM` at the limit of the device.
    pub fn create_ah(&self, av: &AddressVector) -> Result<Ah, VerbsError> {
        let gids = self.0.context.device().gids();
        gids.address(av.sgid_index).ok_or_else(|| refuse_gid_index(av.sgid_index))?;
        let _share = Arc::new(self.0.context.quotas().ahs.take()?);
        Ok(Ah { av: *av, pd: self.clone(), _share })
    }
}

/// The memory that a region keeps until it is deregistered.
pub(super) type Backing = Arc<dyn Any + Send + Sync>;

/// A memory region. Dropping the last clone deregisters it and unbinds its windows; after that the device
/// does not touch the memory.
#[derive(Clone)]
pub struct Mr(Arc<MrInner>);

struct MrInner {
    pd: Pd,
    key: u32,
    range: Range,
    access: Access,
    /// The memory that the range lies in, unless it is the application's; freed after the key was removed.
    backing: Option<Backing>,
    _share: Share,
}

/// The changes that [`Mr::change`] makes; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Default)]
pub struct MrChange<'a> {
    /// Another protection domain.
    pub pd: Option<&'a Pd>,
    /// Another range: first byte, length, and the address that peers and work requests use for the first
    /// byte.
    pub range: Option<(*mut u8, usize, u64)>,
    /// Other access rights.
    pub access: Option<Access>,
}

impl Drop for MrInner {
    fn drop(&mut self) {
        self.pd.engine().with_keys(|keys| keys.remove(self.key));
    }
}

impl Mr {
    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Returns the key for local work requests.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey(self.0.key)
    }

    /// Returns the key to give to peers.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.0.key)
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.0.range.base
    }

    /// Returns the address that peers and work requests use for the first byte: its own, or 0 in a zero-based
    /// region.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.0.range.iova
    }

    /// Returns the access rights.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// True if memory windows are bound to it.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.0.pd.engine().with_keys(|keys| keys.has_windows(self.0.key))
    }

    /// Changes the region atomically, all or nothing; its keys stay (ibv_rereg_mr(3)).
    ///
    /// # Errors
    /// `EBUSY` while windows are bound to it or another clone exists; `EINVAL` as for [`Pd::reg_mr`], for
    /// regions of device memory and dma-bufs, and for a domain of another device.
    ///
    /// # Safety
    /// As [`Pd::reg_mr`], for the changed region.
    pub unsafe fn change(&mut self, to: &MrChange<'_>) -> Result<(), VerbsError> {
        let key = self.0.key;
        let inner = Arc::get_mut(&mut self.0).ok_or_else(
            || refuse!(EBUSY, "memory region", "lkey"; key; "the region {key:#010x} has another handle"),
        )?;
        if inner.backing.is_some() {
            return Err(refuse!(EINVAL, "memory region", "lkey"; key;
                "the region {key:#010x} is of device memory or a dma-buf, which cannot be changed"));
        }
        if let Some(pd) = to.pd {
            same_device!("memory region", "pd"; inner.pd.device(), pd.device())?;
        }
        let range = to.range.map(|(addr, len, iova)| Range { base: addr as u64, len: len as u64, iova });
        let pd = to.pd.map(Pd::id);
        inner.pd.engine().with_keys(|keys| keys.change(inner.key, pd, range, to.access))?;
        inner.pd = to.pd.unwrap_or(&inner.pd).clone();
        inner.range = range.unwrap_or(inner.range);
        inner.access = to.access.unwrap_or(inner.access);
        Ok(())
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.range.len
    }

    /// True if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.range.len == 0
    }
}

/// An address handle: the destination of UD sends.
#[derive(Clone)]
pub struct Ah {
    av: AddressVector,
    pd: Pd,
    _share: Arc<Share>,
}

impl Ah {
    /// Returns the address vector.
    #[must_use]
    pub fn av(&self) -> AddressVector {
        self.av
    }

    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}
