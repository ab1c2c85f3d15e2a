//! fork(2) without exec: the parent continues unchanged, and the child starts without a device.
//!
//! A child inherits memory and descriptors but no threads. Its copies would keep the parent's names, sockets
//! and connections to other members open after the parent's death, and its exit would disconnect the
//! parent's peers. So the forking thread holds the locks of each engine during the fork. In the child each
//! engine is then consistent; it gets a dead port, detaches its descriptors, and is removed from its device.
//! The device starts another engine on its next use. The child may call and destroy inherited objects,
//! without any effect on the network.
//!
//! Locks are taken in the order of `cm/driver.rs`. The locks that only calls of the application hold (of an
//! identifier, of a CQ) are not taken. A program that forks while another thread is inside a call cannot use
//! that object in the child. The engine of the child is a new one.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem;
use std::ptr;
use std::sync::{Arc, MutexGuard, Weak};

use crate::cm::CmLocks;
use crate::engine::gsi::HeldState;
use crate::engine::{Core, Engine};
use crate::netdev::{Gids, NetdevLock};
use crate::port::DeadPort;
use crate::raw::{Raw, State};
use crate::registry::RegistryLocks;
use crate::stages::Stages;
use sys::{ForkHandlers, KeptLock, LimitLock, Netlink, ProcessMutex};

/// Where a device keeps its engine.
pub(crate) type EngineSlot = ProcessMutex<Option<Arc<Engine>>>;

/// The slots of all devices.
static SLOTS: ProcessMutex<Vec<Slot>> = ProcessMutex::new();

/// The engine of a device, and its monitor of the netdev.
type Slot = (Weak<EngineSlot>, Weak<Gids>);

thread_local! {
    /// The locks that this thread holds during a fork.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
    /// The generation in which this thread last prepared a fork.
    static PREPARED_IN: Cell<u32> = const { Cell::new(0) };
}

struct Held {
    devices: Vec<DeviceLocks>,
    limit: Option<LimitLock>,
    slots: MutexGuard<'static, Vec<Slot>>,
}

/// The locks of one device.
struct DeviceLocks {
    /// `None` if a lock was not available in time.
    engines: Option<Vec<EngineLocks>>,
    netdev: Option<NetdevLock>,
    slot: SlotLock,
}

type SlotLock = KeptLock<EngineSlot, Option<Arc<Engine>>>;

struct EngineLocks {
    _keys: KeptLock<Engine, ()>,
    raw: Option<KeptLock<Raw, State>>,
    core: KeptLock<Engine, Core>,
    held: KeptLock<Engine, HeldState>,
    registry: RegistryLocks,
    _claims: KeptLock<Engine, ()>,
    routes: KeptLock<Engine, Option<Netlink>>,
    _cm: CmLocks,
    engine: Arc<Engine>,
}

/// Registers the fork handlers of the devices. A program that holds locks of its own while it calls a device
/// registers its handlers afterwards: they then take its locks before those of the devices.
///
/// # Errors
/// `ENOMEM`.
pub fn watch_forks() -> io::Result<()> {
    static HANDLERS: ForkHandlers = ForkHandlers::new();
    HANDLERS.register(prepare, parent, child)
}

/// Returns the engine slot of a new device with these GIDs. The fork handlers know it before a thread can
/// lock it.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn new_slot(gids: &Arc<Gids>) -> io::Result<Arc<EngineSlot>> {
    watch_forks()?;
    let slot = Arc::default();
    add_slot(&slot, gids);
    Ok(slot)
}

/// Tells the fork handlers of a slot, unless they know it. A child does not know the slots of its parent if
/// the parent could not lock their list in time. The caller must not hold the lock of the slot, which the
/// handlers take after that of the list.
pub(crate) fn add_slot(slot: &Arc<EngineSlot>, gids: &Arc<Gids>) {
    let mut slots = SLOTS.lock();
    slots.retain(|(known, _)| known.strong_count() > 0);
    if !slots.iter().any(|(known, _)| ptr::eq(known.as_ptr(), Arc::as_ptr(slot))) {
        slots.push((Arc::downgrade(slot), Arc::downgrade(gids)));
    }
}

// The handlers may be registered twice, and then the second run of each does nothing.

extern "C" fn prepare() {
    PREPARED_IN.set(sys::generation());
    // Fails at the end of a thread, when its thread-local storage is destroyed; the fork is then not
    // prepared.
    if HELD.try_with(|held| held.borrow().is_none()) == Ok(true) {
        HELD.set(Held::take());
    }
}

extern "C" fn parent() {
    sys::end_fork_deadline();
    let _unprepared = HELD.try_with(RefCell::take);
}

extern "C" fn child() {
    if PREPARED_IN.get() != sys::generation() {
        return;
    }
    sys::end_fork_deadline();
    sys::next_generation();
    if let Ok(Some(mut held)) = HELD.try_with(RefCell::take) {
        held.limit.iter_mut().for_each(LimitLock::restore);
        *SLOTS.lock() = mem::take(&mut *held.slots);
        held.devices.into_iter().for_each(DeviceLocks::release_in_child);
    }
}

impl Held {
    fn take() -> Option<Held> {
        // If a signal handler forks, the interrupted thread may hold a lock. The child then keeps descriptors
        // of its parent.
        let until_ns = sys::fork_deadline();
        let slots = sys::lock_until(SLOTS.get(), until_ns)?;
        // All slots first: an engine that starts needs the answers of the others.
        let known = slots.iter().filter_map(|(slot, gids)| Some((slot.upgrade()?, gids.upgrade()?)));
        let taken: Vec<(SlotLock, Arc<Gids>)> = known
            .filter_map(|(slot, gids)| Some((KeptLock::take(&slot, |slot| slot.get(), until_ns)?, gids)))
            .collect();
        let devices =
            taken.into_iter().map(|(slot, gids)| DeviceLocks::take(slot, &gids, until_ns)).collect();
        Some(Held { devices, limit: LimitLock::take(until_ns), slots })
    }
}

impl DeviceLocks {
    fn take(slot: SlotLock, gids: &Arc<Gids>, until_ns: u64) -> DeviceLocks {
        // Before the engines: a thread that takes a change of the netdev locks them while it holds this.
        let netdev = gids.keep_locked(until_ns);
        let engines = slot.as_ref().and_then(|first| {
            (0..first.all().count()).map(|index| EngineLocks::take(first.at(index), until_ns)).collect()
        });
        DeviceLocks { engines, netdev, slot }
    }

    fn release_in_child(mut self) {
        self.netdev.into_iter().for_each(NetdevLock::release_in_child);
        let engine = self.slot.take();
        match self.engines {
            Some(locks) => locks.into_iter().for_each(EngineLocks::release_in_child),
            // Another thread may have been changing the engine, so it cannot be dropped safely; leak it.
            None => mem::forget(engine),
        }
    }
}

impl EngineLocks {
    fn take(engine: &Arc<Engine>, until_ns: u64) -> Option<EngineLocks> {
        Some(EngineLocks {
            // A claim of a further slot takes the locks of the engine and of the registry.
            _claims: KeptLock::take(engine, |engine| &engine.services.claims.lock, until_ns)?,
            routes: KeptLock::take(engine, |engine| &engine.services.routes.0, until_ns)?,
            _cm: engine.services.cm.keep_locked(until_ns)?,
            held: KeptLock::take(engine, |engine| &engine.services.held.0, until_ns)?,
            _keys: KeptLock::take(engine, |engine| &engine.place.keys, until_ns)?,
            raw: match engine.place.raw() {
                Some(raw) => Some(KeptLock::take(raw, |raw| &raw.state, until_ns)?),
                None => None,
            },
            core: KeptLock::take(engine, |engine| &engine.core, until_ns)?,
            registry: engine.services.registry.membership()?.keep_locked(until_ns)?,
            engine: Arc::clone(engine),
        })
    }

    fn release_in_child(mut self) {
        self.core.port = Box::new(DeadPort::default());
        // Both processes would read the answers.
        *self.routes = None;
        // The child does not have the memory of the taps.
        let _without = self.core.hooks.with(Stages::forget_taps);
        self.core.tables.observer.record(None);
        if let Some(raw) = &mut self.raw {
            raw.close();
        }
        self.core.tables.forget_undelivered();
        self.held.forget();
        if let Some(membership) = self.engine.services.registry.membership() {
            membership.release_in_child(&mut self.registry);
        }
        self.engine.services.control.iter().for_each(|control| control.disinherit());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid::GidTable;

    #[test]
    fn handlers_that_are_registered_twice_hold_the_locks_until_the_fork() {
        let holds_locks = || HELD.with_borrow(Option::is_some);
        prepare();
        prepare();
        assert!(holds_locks());
        parent();
        assert!(!holds_locks());
        parent();
    }

    #[test]
    fn a_slot_that_the_parent_could_not_hand_over_is_added_once() {
        let gids = Arc::new(Gids::new(GidTable::without_addresses()));
        let slot = new_slot(&gids).unwrap();
        let is_it = |known: &Slot| ptr::eq(known.0.as_ptr(), Arc::as_ptr(&slot));
        let count = || SLOTS.lock().iter().filter(|known| is_it(known)).count();
        assert_eq!(count(), 1);
        SLOTS.lock().retain(|known| !is_it(known));
        add_slot(&slot, &gids);
        add_slot(&slot, &gids);
        assert_eq!(count(), 1);
    }
}
