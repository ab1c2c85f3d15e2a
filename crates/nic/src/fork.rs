//! fork(2) without exec: the parent goes on as if nothing had happened, the child begins without a device.
//!
//! A child inherits memory and descriptors but no thread. Untended, its copies would keep our names, our socket group
//! and our connections to other members alive beyond our death, and its exit would disconnect the parent's peers. So
//! around every fork the forking thread holds the locks of each engine: in the child the engine is then in one piece,
//! gets a dead port, gives up its descriptors, and is forgotten by its device, which starts another one when it is next
//! used. Objects the child has inherited can be used in vain and destroyed: nothing arrives, nothing leaves.
//!
//! Locks are taken in the order of `cm/driver.rs`; those that only an application's call holds (of an identifier, of a
//! CQ) are not taken: a program that forks while another of its threads is inside a call may not use that object in
//! the child.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cm::CmLocks;
use crate::engine::gsi::Early;
use crate::engine::{Core, Engine};
use crate::hook::control::Control;
use crate::port::DeadPort;
use crate::registry::RegistryLocks;
use sys::{KeptLock, LimitLock, now_ns};

/// The place where a device keeps its engine.
pub(crate) type EngineSlot = Mutex<Option<Arc<Engine>>>;

/// Those of this process's devices; `None` until the handlers are registered.
static SLOTS: Mutex<Option<Vec<Weak<EngineSlot>>>> = Mutex::new(None);

/// Longest that each lock is waited for: if a signal handler forks, the thread it interrupted may hold it.
const PATIENCE_NS: u64 = 100_000_000;

thread_local! {
    /// What this thread holds while it forks.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

struct Held {
    devices: Vec<DeviceLocks>,
    limit: LimitLock,
    _slots: MutexGuard<'static, Option<Vec<Weak<EngineSlot>>>>,
}

/// The locks of one device.
struct DeviceLocks {
    /// `None` if its locks could not be had.
    engines: Option<Vec<EngineLocks>>,
    slot: KeptLock<EngineSlot, Option<Arc<Engine>>>,
}

struct EngineLocks {
    _keys: KeptLock<Engine, ()>,
    core: KeptLock<Engine, Core>,
    held: KeptLock<Engine, VecDeque<Early>>,
    registry: RegistryLocks,
    _cm: CmLocks,
    engine: Arc<Engine>,
}

/// From now on forks are prepared for the engine that the device puts into `slot`.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn watch(slot: &Arc<EngineSlot>) -> io::Result<()> {
    let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    if slots.is_none() {
        sys::at_fork(prepare, parent, child)?;
    }
    let slots = slots.get_or_insert_default();
    slots.retain(|known| known.strong_count() > 0 && !Weak::ptr_eq(known, &Arc::downgrade(slot)));
    slots.push(Arc::downgrade(slot));
    Ok(())
}

extern "C" fn prepare() {
    // At the end of a thread there may be no place for it any more; the child is then on its own.
    let _unprepared = HELD.try_with(|held| held.replace(Held::take()));
}

extern "C" fn parent() {
    let _unprepared = HELD.try_with(RefCell::take);
}

extern "C" fn child() {
    sys::next_generation();
    if let Ok(Some(mut held)) = HELD.try_with(RefCell::take) {
        held.limit.restore();
        held.devices.into_iter().for_each(DeviceLocks::release_in_child);
    }
}

impl Held {
    fn take() -> Option<Held> {
        let slots = sys::lock_until(&SLOTS, patience())?;
        let known = slots.iter().flatten().filter_map(Weak::upgrade);
        let devices = known.filter_map(|slot| DeviceLocks::take(&slot)).collect();
        Some(Held { devices, limit: LimitLock::take(patience())?, _slots: slots })
    }
}

impl DeviceLocks {
    fn take(slot: &Arc<EngineSlot>) -> Option<DeviceLocks> {
        let slot = KeptLock::take(slot, |slot| slot, patience())?;
        let engines = slot.as_ref().and_then(|first| {
            (0..first.all().count()).map(|index| EngineLocks::take(first.at(index))).collect()
        });
        Some(DeviceLocks { engines, slot })
    }

    fn release_in_child(mut self) {
        let engine = self.slot.take();
        match self.engines {
            Some(locks) => locks.into_iter().for_each(EngineLocks::release_in_child),
            // Dropping what some thread was in the middle of is worse than not dropping it.
            None => mem::forget(engine),
        }
    }
}

impl EngineLocks {
    fn take(engine: &Arc<Engine>) -> Option<EngineLocks> {
        Some(EngineLocks {
            _cm: engine.cm.keep_locked(patience())?,
            held: KeptLock::take(engine, |engine| &engine.held.0, patience())?,
            _keys: KeptLock::take(engine, |engine| &engine.place.keys, patience())?,
            core: KeptLock::take(engine, |engine| &engine.core, patience())?,
            registry: engine.registry.membership()?.keep_locked(patience())?,
            engine: Arc::clone(engine),
        })
    }

    fn release_in_child(mut self) {
        self.core.port = Box::new(DeadPort::default());
        self.core.tables.forget_undelivered();
        self.held.clear();
        if let Some(membership) = self.engine.registry.membership() {
            membership.release_in_child(&mut self.registry);
        }
        self.engine.monitor.iter().for_each(sys::disconnect);
        self.engine.control.iter().for_each(Control::disinherit);
    }
}

fn patience() -> u64 {
    now_ns() + PATIENCE_NS
}
