//! The engine: one port, its QPs and their timers, behind one lock; whoever polls drives it.
//!
//! A thread that polls an empty CQ takes the lock if it is free and runs a batch inline ([`Engine::poll`]); the
//! background thread (`background.rs`) takes over when nobody has polled for a while. Invariant: completions,
//! events and datagrams for the connection manager are collected under the lock and delivered by the same call.

pub(crate) mod group;
pub(crate) mod gsi;
mod rx;
pub(crate) mod tables;
mod timers;
pub(crate) mod tx;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use transport::cm::Cm;
use transport::{AddressVector, Instant, VerbsError};
use wire::{FlushIcrc, Gid, Qpn};

use crate::cm::CmDriver;
use crate::engine::group::Place;
use crate::engine::gsi::Held;
use crate::engine::tables::{Flow, QpEntry, Tables};
use crate::gid::Gids;
use crate::hook::control::{Answers, Control, FRAMES_BYTES_MAX, Reply, Request};
use crate::hook::{HookError, Hooks, RedirectOutcome, TapFilter};
use crate::moderation::Moderator;
use crate::port::{FlowKey, Port, RxQueues};
use crate::registry::Membership;
use crate::sched::turns::Turns;
use crate::stats::Row;
use crate::status::EngineStatus;
use crate::verbs::{FileId, XrcDomain};
use sys::{AddressMonitor, EventFd, now_ns};

/// Packets one QP may send before the next one has its turn: two bursts.
pub(crate) const TX_QUOTA: usize = 124;
/// Batches of one poll while there are READs to answer; who polls wants his thread back at some time.
const ANSWER_TURNS: usize = 16;
/// Batches that the background thread takes in a row, while there are some, before it looks at what else it is there for.
const BACKGROUND_BATCHES: usize = 4;
/// Batches that are read before timers are run; a flood may not stop them for longer.
const UNREAD_BATCHES_MAX: usize = 64;
/// An inline poller looks at the GSI socket only this often; the background thread watches it otherwise.
const GSI_POLL_INTERVAL: u64 = 64;
/// Inline polls that find nothing look at the clock, and so at timers, this often: reading it costs as much as the rest of such a poll.
const CLOCK_INTERVAL: u64 = 4;

/// Between two looks at what peers say to a process that ends.
const LEAVING_POLL: Duration = Duration::from_micros(50);
/// What it may take longer than planned to say farewell, on a busy machine.
const LEAVING_SLACK: Duration = Duration::from_millis(25);

/// What the lock protects.
pub(crate) struct Core {
    pub(crate) port: Box<dyn Port>,
    pub(crate) hooks: Hooks,
    pub(crate) tables: Tables,
}

/// See the module documentation.
pub(crate) struct Engine {
    pub(crate) core: Mutex<Core>,
    pub(crate) cm: Arc<CmDriver>,
    pub(crate) bag: Membership,
    /// `None` if there was no descriptor for it; hooks are then attached from within only.
    pub(crate) control: Option<Control>,
    pub(crate) gids: Arc<Gids>,
    /// `None` in sandboxes that forbid netlink, where the addresses stay those of the start; and in further engines.
    pub(crate) monitor: Option<AddressMonitor>,
    /// It was told that the netdev is gone.
    netdev_lost: AtomicBool,
    /// See [`Port::prefers_equal_packets`].
    pub(crate) equal_packets: bool,
    /// Counts inline polls, so that the background thread can tell whether somebody drives.
    pub(crate) inline_polls: AtomicU64,
    turns: Turns,
    pub(crate) place: Place,
    pub(crate) held: Held,
    redirects: Arc<RedirectOutcome>,
    /// Armed CQs; see `cq.rs`.
    pub(crate) armed_cqs: Arc<AtomicUsize>,
    pub(crate) moderator: Arc<Moderator>,
    /// The background thread leaves the sockets to inline pollers.
    pub(crate) watching: AtomicBool,
    /// When the sleeping background thread wakes by itself (nanoseconds).
    pub(crate) sleeps_until: AtomicU64,
    pub(crate) kick: EventFd,
    pub(crate) pd_ids: AtomicU32,
    /// XRC domains that files stand for.
    pub(crate) xrc_files: Mutex<HashMap<FileId, Weak<XrcDomain>>>,
}

impl Engine {
    pub(crate) fn new(
        port: Box<dyn Port>,
        bag: Membership,
        gids: Arc<Gids>,
        mut hooks: Hooks,
        control: Option<Control>,
        first: Option<(&Arc<Self>, usize)>,
    ) -> std::io::Result<Arc<Self>> {
        let (slot, equal_packets) = (bag.slot(), port.prefers_equal_packets());
        // In this order, so that no change is missed; some time has gone since the device was opened. The first engine tells
        // the others.
        let (monitor, table) = match first {
            None => (AddressMonitor::new().ok(), gids.refresh().unwrap_or_else(|| gids.get())),
            Some(_) => (None, gids.get()),
        };
        hooks.set_slot(slot);
        let redirects = Arc::clone(hooks.redirects());
        let tables = Tables::new(slot, &table);
        Ok(Arc::new(Self {
            core: Mutex::new(Core { port, hooks, tables }),
            cm: Arc::new(CmDriver::new(slot, &table)),
            bag,
            control,
            gids,
            monitor,
            netdev_lost: AtomicBool::new(false),
            equal_packets,
            inline_polls: AtomicU64::new(0),
            turns: Turns::new(),
            place: first.map(|(first, index)| Place::beside(first, index)).unwrap_or_default(),
            held: Held::default(),
            redirects,
            // Completion queues may be served by any of them.
            armed_cqs: first.map(|(first, _)| Arc::clone(&first.armed_cqs)).unwrap_or_default(),
            moderator: first.map(|(first, _)| Arc::clone(&first.moderator)).unwrap_or_default(),
            watching: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            kick: EventFd::new()?,
            pd_ids: AtomicU32::new(1),
            xrc_files: Mutex::default(),
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One batch in the calling thread, unless another thread is at it; whether there was anything.
    pub(crate) fn poll_inline(&self) -> bool {
        let found = self.try_poll();
        self.turns.polled(found);
        found
    }

    #[inline]
    fn try_poll(&self) -> bool {
        let polls = self.inline_polls.fetch_add(1, Ordering::Relaxed);
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // The background thread may have lost the CPU to just this one, and would get it back a tick later. (Where
                // somebody waits for events it does not keep the lock for long.)
                if !self.watching.load(Ordering::Relaxed) && self.armed_cqs.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                return false;
            }
        };
        if !polls.is_multiple_of(CLOCK_INTERVAL) && core.is_quiet() {
            return false;
        }
        let gsi = polls.is_multiple_of(GSI_POLL_INTERVAL);
        let trains = core.poll(if gsi { RxQueues::ALL } else { RxQueues::SLOT }, Core::transmit_gathered);
        self.unlock_and_deliver(core);
        trains > 0
    }

    /// Some batches of everything, for the background thread; the number of trains received.
    pub(crate) fn poll_all(&self) -> usize {
        let trains = self.poll_batches(RxQueues::ALL);
        self.offer_held();
        trains + self.cm.poll(now(), self)
    }

    /// Some batches of the queues, while there are any; the number of trains received.
    pub(crate) fn poll_batches(&self, queues: RxQueues) -> usize {
        let mut trains = 0;
        for _ in 0..BACKGROUND_BATCHES {
            let mut core = self.lock();
            let got = core.poll(queues, Core::transmit_turn);
            self.unlock_and_deliver(core);
            trains += got;
            if got == 0 {
                break;
            }
        }
        trains
    }

    /// Releases the lock, then hands on what must not be handled under it.
    fn unlock_and_deliver(&self, mut core: MutexGuard<'_, Core>) {
        self.moderator.expire(now);
        self.wake_before(self.moderator.next());
        let tables = &core.tables;
        let nothing = tables.mads.is_empty() && tables.misrouted.is_empty() && tables.established.is_empty();
        if nothing && !core.hooks.has_redirected() {
            return self.unlock_and_spread(core);
        }
        let tables = &mut core.tables;
        let mads = std::mem::take(&mut tables.mads);
        let misrouted = std::mem::take(&mut tables.misrouted);
        let established = std::mem::take(&mut tables.established);
        let redirected = core.hooks.take_redirected();
        self.unlock_and_spread(core);
        for mad in mads {
            self.take_mad(mad);
        }
        for (slot, packet) in &misrouted {
            // A member that is gone or does not keep up loses the packet; the transport recovers.
            let _lost = self.bag.forward(*slot, &packet.train());
        }
        for (slot, packet) in &redirected {
            self.redirects.count(self.bag.hand_over(*slot, &packet.train()), now_ns());
        }
        self.leading(|first| {
            for qpn in established {
                first.cm.qp_established(qpn);
            }
            first.cm.poll(now(), first);
        });
    }

    /// What the background thread sleeps on; the monitor of the netdev comes last.
    pub(crate) fn wait_fds(&self) -> Vec<RawFd> {
        let mut fds = self.lock().port.poll_fds();
        fds.push(self.bag.listener_fd());
        fds.push(self.kick.as_raw_fd());
        fds.push(self.control_fd());
        fds.push(self.monitor_fd());
        fds
    }

    /// Readable when [`follow_netdev`](Self::follow_netdev) has something to do; -1 where that cannot be known.
    pub(crate) fn monitor_fd(&self) -> RawFd {
        self.monitor.as_ref().map_or(-1, |monitor| monitor.as_fd().as_raw_fd())
    }

    /// Addresses have changed: from now on there are others to send from, and to be asked at.
    pub(crate) fn follow_netdev(&self) {
        if !self.monitor.as_ref().is_some_and(AddressMonitor::take_news) {
            return;
        }
        if let Some(table) = self.gids.refresh() {
            self.cm.set_gids(&table);
            self.all().for_each(|engine| engine.lock().tables.gids = Arc::clone(&table));
            self.netdev_lost.store(false, Ordering::Relaxed);
        } else if self.gids.netdev_is_gone() && !self.netdev_lost.swap(true, Ordering::Relaxed) {
            self.all().for_each(Self::lose_netdev);
        }
    }

    /// The netdev is gone: nobody shall wait for what comes through it. QPs on it fail, programs are told by
    /// DEVICE_FATAL and RDMA_CM_EVENT_DEVICE_REMOVAL, as with a NIC that is pulled out. Loopback goes on.
    fn lose_netdev(&self) {
        let now = now();
        let table = self.gids.get();
        let mut core = self.lock();
        core.tables.lose_addresses(now, |index| table.own_rows().any(|(own, _)| own == index));
        core.transmit(now);
        self.unlock_and_deliver(core);
        self.cm.lose_device(&table.own_rows().map(|(_, row)| row.gid).collect::<Vec<_>>());
    }

    /// Readable when [`serve_control`](Self::serve_control) has something to do; -1 if nobody can ask.
    pub(crate) fn control_fd(&self) -> RawFd {
        self.control.as_ref().map_or(-1, Control::fd)
    }

    /// Does what is asked about hooks from outside.
    pub(crate) fn serve_control(&self) {
        if let Some(control) = &self.control {
            control.serve(self);
        }
    }

    /// Answers other processes of this host and takes the packets they hand over; how many records came.
    pub(crate) fn serve_members(&self) -> usize {
        let mut records = 0;
        self.bag.poll_listener(&mut |train| {
            records += 1;
            let mut core = self.lock();
            let now = now();
            core.receive_forwarded(now, train);
            core.transmit(now);
            self.unlock_and_deliver(core);
        });
        for farewell in self.bag.take_farewells() {
            self.cm.say_farewell(now(), farewell);
        }
        records
    }

    /// Name and value of every counter.
    pub(crate) fn rows(&self, core: &Core) -> Vec<Row> {
        let mut rows = core.rows();
        rows.push(("member_connects", self.bag.connects()));
        rows
    }

    /// When the engine must run again even if nothing arrives.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let core = self.lock();
        let (timer, held) = (core.tables.timers.next(), core.hooks.next_due_ns().map(Instant));
        let room = core.tables.retry_at(now());
        drop(core);
        let deaths = self.bag.second_look_at().map(Instant);
        let events = self.moderator.next();
        [timer, events, held, room, self.cm.poll_timeout(), self.held.next_offer(now()), deaths]
            .into_iter()
            .flatten()
            .min()
    }

    /// The background thread is about to wait for the sockets; false if there is something to do at once.
    pub(crate) fn may_wait(&self) -> bool {
        self.lock().port.may_wait()
    }

    /// Wakes the background thread if it would sleep past `deadline`.
    pub(crate) fn wake_before(&self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if deadline.0 < self.sleeps_until.load(Ordering::Relaxed)
            && self.sleeps_until.swap(deadline.0, Ordering::Relaxed) > deadline.0
        {
            self.kick.signal(1);
        }
    }

    /// The caller stops driving: the background thread returns to the sockets at once.
    pub(crate) fn hand_over(&self) {
        if self.watching.load(Ordering::Relaxed) {
            self.kick.signal(1);
        }
    }

    /// Sends one MAD from QP1.
    pub(crate) fn send_mad(&self, src: Gid, dst: Gid, mad: &[u8; wire::mad::MAD_LEN]) {
        let mut core = self.lock();
        core.send_mad(src, dst, mad);
    }

    /// Adds a QP and returns its index; the QPN is `slot << 16 | index`.
    pub(crate) fn insert_qp(
        &self,
        build: impl FnOnce(Qpn) -> Result<QpEntry, VerbsError>,
    ) -> Result<Qpn, VerbsError> {
        let mut core = self.lock();
        core.tables.insert_qp(build)
    }

    /// Destroys a QP; the peer gets the acknowledgement it is owed first.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        let mut core = self.lock();
        core.release_ack(qpn.value() as u16);
        core.transmit(now());
        if let Some(flow) = core.tables.remove_qp(qpn) {
            core.port.close_flow(flow);
        }
        core.mind_groups();
        self.unlock_and_spread(core);
    }

    /// Peers get the acknowledgements they are owed.
    pub(crate) fn release_acks(&self) {
        let mut core = self.lock();
        for index in 0..core.tables.qps.len() {
            core.release_ack(index as u16);
        }
        core.transmit(now());
    }

    /// Peers are asked to disconnect until they have heard it.
    pub(crate) fn take_leave(&self) {
        let until = now() + (Cm::SHUTDOWN_MAX + LEAVING_SLACK);
        self.cm.take_leave(now());
        while self.cm.is_leaving() && now() < until {
            self.poll_all();
            std::thread::sleep(LEAVING_POLL);
        }
    }

    /// What a slow network that a hook makes still holds is sent: it would arrive.
    pub(crate) fn release_held(&self) {
        let Core { hooks, port, .. } = &mut *self.lock();
        hooks.release(u64::MAX, port.as_mut(), &mut |_| {});
    }

    /// Begins a tap for a connection; what its reader needs.
    fn tap(&self, client: u64, mut filter: TapFilter) -> Result<OwnedFd, HookError> {
        // Made before anything is locked: it is large.
        let (copies, reader) = filter.memory()?;
        let core = &mut *self.lock();
        filter.qps.extend(core.tables.connected_to(&filter.qps));
        core.hooks.tap(client, filter, copies)?;
        Ok(reader)
    }
}

impl Answers for Engine {
    fn answer(&self, client: u64, request: Request) -> (Reply, Option<OwnedFd>) {
        let done = match request {
            // Made before anything is locked: maps may be large.
            Request::Attach { point, plan, replace } => plan
                .build()
                .and_then(|hook| self.lock().hooks.attach(point, hook, replace))
                .map(|_before| Reply::Done),
            Request::Detach { point } => self.lock().hooks.detach(point).map(|_hook| Reply::Done),
            Request::Frames => Ok(Reply::Frames(self.lock().hooks.read_frames(now_ns(), FRAMES_BYTES_MAX))),
            Request::Status => Ok(Reply::Status(self.lock().hooks.status())),
            Request::Tap(filter) => match self.tap(client, filter) {
                Ok(copies) => return (Reply::Done, Some(copies)),
                Err(error) => Err(error),
            },
            Request::Engine => {
                let netdev = self.gids.get().netdev.clone();
                let core = self.lock();
                let port = core.port.describe();
                Ok(Reply::Engine(EngineStatus::new(netdev, port, self.rows(&core))))
            }
            Request::QueuePairs { from } => Ok(Reply::QueuePairs(self.lock().status_from(now(), from))),
        };
        let refused = |error: HookError| Reply::Refused { why: error.to_string(), remedy: error.remedy() };
        (done.unwrap_or_else(refused), None)
    }

    fn forget(&self, client: u64) {
        self.lock().hooks.untap(client);
    }
}

/// The flow from `src` that an address vector and a destination QP mean.
pub(crate) fn flow_key(src: IpAddr, av: &AddressVector, dest_qp: Qpn) -> FlowKey {
    FlowKey {
        src,
        dst: av.dgid.ip(),
        dst_slot: (dest_qp.value() >> 16) as u8,
        tos: av.traffic_class,
        ttl: av.hop_limit.max(1),
        flush_icrc: FlushIcrc::Iba,
    }
}

/// The engine's clock.
pub(crate) fn now() -> Instant {
    Instant(now_ns())
}

impl Core {
    /// Whether there is nothing to do but what goes by the clock, as far as that is known for next to nothing.
    #[inline]
    fn is_quiet(&mut self) -> bool {
        self.tables.ready.is_empty() && self.port.is_quiet()
    }

    /// Receive, timers, transmit: one batch of each; several while there are READs to answer, so that what was lost of
    /// one is not asked for behind all that is still to come.
    #[inline]
    fn poll(&mut self, queues: RxQueues, transmit_turn: impl Fn(&mut Self, Instant) -> bool) -> usize {
        let mut trains = 0;
        for _ in 0..ANSWER_TURNS {
            let now = now();
            trains += self.receive(now, queues);
            trains += self.expire(now, queues);
            if !transmit_turn(self, now) {
                return trains;
            }
        }
        self.transmit(now());
        trains
    }

    /// Runs the timers that are due. What lies in the sockets is read before, and not just a batch of it: an answer that has
    /// arrived is not overdue, however long this process was kept from reading it. Returns the number of trains.
    pub(crate) fn expire(&mut self, now: Instant, queues: RxQueues) -> usize {
        if self.tables.timers.next().is_none_or(|at| at > now) {
            return 0;
        }
        let mut trains = 0;
        for _ in 0..UNREAD_BATCHES_MAX {
            self.port.look_everywhere();
            let got = self.receive(now, queues);
            trains += got;
            if got == 0 {
                break;
            }
        }
        self.tables.expire(now);
        trains
    }

    /// Opens (or finds) the flow a QP's address vector means.
    pub(crate) fn bind_flow(&mut self, index: u16) -> Result<(), VerbsError> {
        let av = *self.tables.qp_mut(index).ok_or(VerbsError::Invalid)?.qp.av();
        let source = self.tables.source_ip(av.sgid_index);
        let entry = self.tables.qp_mut(index).ok_or(VerbsError::Invalid)?;
        let src = source.ok_or(VerbsError::Invalid)?;
        let dest_qp = entry.qp.dest_qpn();
        let traffic = self.tables.traffic;
        let (tos, flush_icrc) = (traffic.class(av.traffic_class), traffic.flush_icrc);
        let key = FlowKey { tos, flush_icrc, ..flow_key(src, &av, dest_qp) };
        let flow = self.port.open_flow(&key).map_err(|_| VerbsError::Invalid)?;
        if self.tables.flows.len() <= flow.0 as usize {
            self.tables.flows.resize_with(flow.0 as usize + 1, Flow::default);
        }
        if let Some(old) = self.tables.move_to_flow(index, Some(flow)) {
            self.port.close_flow(old);
        }
        Ok(())
    }

    fn release_ack(&mut self, index: u16) {
        if let Some(entry) = self.tables.qp_mut(index) {
            entry.qp.release_ack();
            if entry.qp.wants_transmit() {
                self.tables.make_ready(index);
            }
        }
    }
}
