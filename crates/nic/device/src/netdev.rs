//! A device follows its netdev: the GID table, and the asynchronous events of its changes.
//!
//! One netlink socket, which is open while the device has been opened, reports the changes. The kernel
//! delivers those of the netdev, of the interfaces above it and of the loopback interface. While the device
//! has an engine, the engine's progress thread waits for them. Before, no thread runs: the descriptor of each
//! context then is also readable when there are changes, and ibv_get_async_event(3), ibv_query_port(3) and
//! ibv_query_gid(3) take them.
//!
//! Events are those of rxe and of hardware. PORT_ERR: the netdev went down or lost its carrier. PORT_ACTIVE:
//! it is up and has a carrier again. GID_CHANGE: once for each address that came or went. DEVICE_FATAL: the
//! netdev was removed, or moved to another network namespace; the device does not come back.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock, Weak};

use sys::{Epoll, KeptLock, NetEvent, NetEvents, PollFd, ProcessMutex};
use transport::AsyncEventKind;

use crate::events::{AsyncElement, AsyncEvent, EventQueue};
use crate::gid::{GidRow, GidTable};
use crate::notice::notice;

/// A context gets no more events of its port while so many are unread.
const UNREAD_MAX: usize = 1000;

/// The current GID table of a device, and the contexts that get an event when it changes.
#[derive(Debug)]
pub struct Gids {
    table: RwLock<Arc<GidTable>>,
    /// A forked child has another monitor and other contexts.
    watch: ProcessMutex<Watch>,
    is_removed: AtomicBool,
    /// The user was told of addresses beyond the table.
    is_told: AtomicBool,
}

#[derive(Debug, Default)]
struct Watch {
    /// `None` before the first context, and in sandboxes that forbid netlink.
    monitor: Option<NetEvents>,
    contexts: Vec<Weak<ContextEvents>>,
    /// Changes were taken, and the table could not be read.
    is_stale: bool,
}

/// Keeps the monitor unchanged during a fork.
pub(crate) struct NetdevLock(KeptLock<Gids, Watch>);

impl NetdevLock {
    /// Closes the monitor in a forked child, which opens one of its own.
    pub(crate) fn release_in_child(mut self) {
        self.0.monitor = None;
    }
}

/// The asynchronous events of a context.
#[derive(Debug)]
pub(crate) struct ContextEvents {
    /// Number of the context in this process.
    pub(crate) number: u32,
    pub(crate) queue: Arc<EventQueue<AsyncEvent>>,
    /// Readable while events are unread, or when the netdev has changed and no engine runs.
    readable: Epoll,
}

impl Gids {
    /// Creates the holder with a first table.
    #[must_use]
    pub fn new(table: GidTable) -> Gids {
        Gids {
            table: RwLock::new(Arc::new(table)),
            watch: ProcessMutex::new(),
            is_removed: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
        }
    }

    /// Tells the user, once, that the interface has more addresses than the table has rows.
    fn tell_beyond(&self) {
        let table = self.get();
        let (netdev, more) = (&table.netdev, table.beyond.len());
        if more > 0 && !self.is_told.swap(true, Ordering::Relaxed) {
            let first = table.beyond[0].gid.ip();
            notice(format_args!(
                "the GID table of {netdev} is full: {more} addresses, such as {first}, are no GIDs \
                 ('roxie devinfo' lists them)"
            ));
        }
    }

    /// Returns the current table.
    #[must_use]
    pub fn get(&self) -> Arc<GidTable> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// True if the netdev was removed, or moved to another network namespace.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// Ends the engine of a device that was removed and has no context any more. If another thread uses the
    /// device at the moment, the engine ends with the device.
    pub(crate) fn end_unused<E>(&self, slot: &ProcessMutex<Option<E>>) {
        if !self.is_removed() {
            return;
        }
        let is_closed = |watch: MutexGuard<'_, Watch>| watch.contexts.iter().all(|it| it.strong_count() == 0);
        if self.watch.try_lock().is_some_and(is_closed) {
            // Dropped without the lock.
            let _engine = slot.try_lock().and_then(|mut engine| engine.take());
        }
    }

    /// True if changes of the netdev are noticed: the device was opened.
    pub(crate) fn is_followed(&self) -> bool {
        self.watch.try_lock().is_some_and(|watch| watch.monitor.is_some())
    }

    /// Takes a table that was read now, unless changes are noticed anyway.
    pub(crate) fn renew(&self, now: &GidTable) {
        if let Some(new) = self.get().updated(now.clone()).filter(|_| !self.is_followed()) {
            self.publish(&Arc::new(new));
        }
    }

    /// Adds a context. `has_engine`: the progress thread of an engine follows the netdev.
    pub(crate) fn add_context(&self, context: &Arc<ContextEvents>, has_engine: bool) {
        // Without netlink, or out of descriptors, the context gets no events of its port.
        let mut watch = self.watch.lock();
        if !has_engine {
            self.open_monitor(&mut watch);
            if let Some(monitor) = &watch.monitor {
                let _unwatched = context.readable.add(monitor.as_fd(), 0);
            }
        }
        watch.contexts.retain(|known| known.strong_count() > 0);
        watch.contexts.push(Arc::downgrade(context));
        drop(watch);
        self.tell_beyond();
    }

    /// Returns the numbers of the contexts, in order.
    pub(crate) fn contexts(&self) -> Vec<u32> {
        let watch = self.watch.lock();
        let contexts = watch.contexts.iter().filter_map(Weak::upgrade);
        let mut numbers: Vec<u32> = contexts.map(|context| context.number).collect();
        // Two threads that open the device at once may add their contexts in the other order.
        numbers.sort_unstable();
        numbers
    }

    /// Opens the monitor, unless it is open; returns its descriptor, or -1.
    pub(crate) fn monitor(&self) -> RawFd {
        let mut watch = self.watch.lock();
        self.open_monitor(&mut watch);
        watch.monitor.as_ref().map_or(-1, |monitor| monitor.as_fd().as_raw_fd())
    }

    /// The progress thread of an engine follows the netdev from now on.
    pub(crate) fn leave_to_engine(&self) {
        let watch = self.watch.lock();
        let Some(monitor) = &watch.monitor else { return };
        for context in watch.contexts.iter().filter_map(Weak::upgrade) {
            // The set has no monitor if there was none when the context was opened.
            let _absent = context.readable.remove(monitor.as_fd());
        }
    }

    /// Takes the changes of the netdev. If the table changes, calls `apply` with the old one, the new one
    /// and whether the netdev was removed, and then tells the contexts. Does not wait for another thread that
    /// does the same.
    pub(crate) fn follow(&self, apply: impl FnOnce(&GidTable, &Arc<GidTable>, bool)) {
        let Some(mut guard) = self.watch.try_lock() else { return };
        let watch = &mut *guard;
        let Some(monitor) = &mut watch.monitor else { return };
        let old = self.get();
        // A link that went down and up between two calls gives two events.
        let (mut carriers, mut is_gone) = (Vec::new(), false);
        let count = monitor.drain(&mut |event| match event {
            NetEvent::Link(link) if link.index == old.ifindex => carriers.push(link.has_carrier),
            NetEvent::LinkGone(index) => is_gone |= index == old.ifindex,
            _ => {}
        });
        if (count == 0 && !watch.is_stale) || self.is_removed() {
            return;
        }
        watch.is_stale = false;
        let new = match GidTable::of_index(old.ifindex) {
            Ok(now) if !is_gone => old.updated(now),
            Err(error) if !is_gone && error.raw_os_error() != Some(libc::ENODEV) => {
                // Out of descriptors, for example: the next call looks again.
                watch.is_stale = true;
                None
            }
            _ => {
                is_gone = true;
                Some(old.without_netdev())
            }
        };
        if let Some(new) = new.map(Arc::new) {
            self.publish(&new);
            self.is_removed.store(is_gone, Ordering::Relaxed);
            if let Some(monitor) = &watch.monitor {
                // Fails only for a descriptor that is no socket.
                let _kept = monitor.set_interfaces(&new.interfaces());
            }
            apply(&old, &new, is_gone);
        }
        let new = self.get();
        if !watch.is_stale {
            carriers.push(new.has_carrier);
        }
        let kinds = kinds(&old, &new, carriers, is_gone);
        watch.contexts.retain(|context| context.upgrade().inspect(|context| context.tell(&kinds)).is_some());
        drop(guard);
        self.tell_beyond();
    }

    /// Takes the lock, or returns `None` if that lasts until `until_ns`.
    pub(crate) fn keep_locked(self: &Arc<Self>, until_ns: u64) -> Option<NetdevLock> {
        KeptLock::take(self, |gids| gids.watch.get(), until_ns).map(NetdevLock)
    }

    fn open_monitor(&self, watch: &mut Watch) {
        if watch.monitor.is_some() || self.is_removed() {
            return;
        }
        let ifindex = self.get().ifindex;
        watch.monitor = NetEvents::of_interfaces(&self.get().interfaces()).ok();
        // The monitor is open before the addresses are read, so that no change is missed.
        let now = GidTable::of_index(ifindex).ok();
        if let Some(new) = now.and_then(|now| self.get().updated(now)) {
            self.publish(&Arc::new(new));
        }
    }

    fn publish(&self, table: &Arc<GidTable>) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(table);
    }
}

/// Returns the events of a change. `carriers`: whether the link had a carrier, after each message about it.
fn kinds(old: &GidTable, new: &GidTable, carriers: Vec<bool>, is_gone: bool) -> Vec<AsyncEventKind> {
    let mut kinds = Vec::new();
    let mut has_carrier = old.has_carrier;
    for now in carriers {
        if std::mem::replace(&mut has_carrier, now) != now {
            kinds.push(if now { AsyncEventKind::PortActive } else { AsyncEventKind::PortErr });
        }
    }
    let is_missing = |in_table: &GidTable, row: &GidRow| !in_table.rows().any(|(_, other)| other == *row);
    let removed = old.rows().filter(|(_, row)| is_missing(new, row));
    let added = new.rows().filter(|(_, row)| is_missing(old, row));
    kinds.extend(removed.chain(added).map(|_| AsyncEventKind::GidChange));
    kinds.extend(is_gone.then_some(AsyncEventKind::DeviceFatal));
    kinds
}

impl ContextEvents {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// `EMFILE` if the process is out of descriptors.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let (queue, readable) = (EventQueue::new()?, Epoll::new()?);
        // The application sets O_NONBLOCK on the other descriptor.
        queue.set_nonblocking()?;
        readable.add(queue.as_fd(), 0)?;
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Self { number, queue: Arc::new(queue), readable }))
    }

    /// Returns the descriptor for poll(2) and O_NONBLOCK.
    pub(crate) fn fd(&self) -> RawFd {
        self.readable.as_raw_fd()
    }

    /// Returns the oldest event; waits for one. `look` is called before it waits, and may add events.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking and there is no event; `Interrupted` on a signal.
    pub(crate) fn get(&self, look: impl Fn()) -> io::Result<AsyncEvent> {
        loop {
            look();
            match self.queue.get() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.readable.is_nonblocking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut readable = [PollFd::readable(self.fd())];
            sys::poll_interruptible(&mut readable, None)?;
            if readable[0].is_closed() {
                return Err(io::Error::from_raw_os_error(libc::EBADF));
            }
        }
    }

    fn tell(&self, kinds: &[AsyncEventKind]) {
        for kind in kinds {
            if self.queue.len() < UNREAD_MAX {
                self.queue.push(AsyncEvent { kind: *kind, element: AsyncElement::Port(1) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::poll;

    use AsyncEventKind::{DeviceFatal, GidChange, PortActive, PortErr};

    fn table(ips: &[&str]) -> GidTable {
        let row = |ip: &&str| GidRow { gid: ip.parse::<std::net::IpAddr>().unwrap().into(), ifindex: 1 };
        GidTable { entries: ips.iter().map(row).collect(), ..GidTable::without_addresses() }
    }

    #[test]
    fn each_address_that_comes_or_goes_is_one_event() {
        let first = table(&["10.0.0.1", "fd00::1"]);
        assert_eq!(kinds(&first, &first, vec![true], false), []);
        let second = first.updated(table(&["10.0.0.1", "10.0.0.2", "10.0.0.3"])).unwrap();
        assert_eq!(kinds(&first, &second, vec![true], false), [GidChange; 3]);
    }

    #[test]
    fn a_link_that_goes_down_and_up_between_two_looks_is_two_events() {
        let up = table(&["10.0.0.1"]);
        assert_eq!(kinds(&up, &up, vec![false, true, true], false), [PortErr, PortActive]);
        let down = GidTable { has_carrier: false, ..up.clone() };
        assert_eq!(kinds(&up, &down, vec![false], false), [PortErr]);
        assert_eq!(kinds(&down, &down, vec![false], false), []);
    }

    #[test]
    fn a_removed_netdev_takes_its_link_and_its_addresses_along() {
        let there = table(&["10.0.0.1", "fd00::1"]);
        let gone = there.without_netdev();
        assert_eq!(gone.rows().count(), 0);
        let want = [PortErr, GidChange, GidChange, DeviceFatal];
        assert_eq!(kinds(&there, &gone, vec![gone.has_carrier], true), want);
    }

    #[test]
    fn contexts_that_two_threads_add_in_the_other_order_are_listed_in_order() {
        let gids = Gids::new(GidTable::without_addresses());
        let (first, second) = (ContextEvents::new().unwrap(), ContextEvents::new().unwrap());
        gids.add_context(&second, true);
        gids.add_context(&first, true);
        assert_eq!(gids.contexts(), [first.number, second.number]);
    }

    #[test]
    fn the_descriptor_is_readable_while_events_are_unread() {
        let context = ContextEvents::new().unwrap();
        let is_readable = || poll(&mut [PollFd::readable(context.fd())], Some(0)).unwrap() == 1;
        assert!(!is_readable());
        context.tell(&[PortErr, PortActive]);
        assert!(is_readable());
        assert_eq!(context.get(|| {}).unwrap().kind, PortErr);
        assert_eq!(context.get(|| {}).unwrap().kind, PortActive);
        assert!(!is_readable());
        // An event that only a look at the netdev finds.
        assert_eq!(context.get(|| context.tell(&[GidChange])).unwrap().kind, GidChange);
    }

    #[test]
    fn a_program_that_reads_no_events_keeps_the_oldest() {
        let context = ContextEvents::new().unwrap();
        for _ in 0..UNREAD_MAX {
            context.tell(&[PortErr, PortActive]);
        }
        assert_eq!(context.queue.len(), UNREAD_MAX);
    }
}
