//! The engine: one port, its queue pairs and their timers, behind one lock.
//!
//! A thread that polls an empty CQ takes the lock if it is free and processes one batch inline
//! ([`Engine::poll_inline`]); the progress thread takes over when no application thread polls often.
//! [`crate::sched`] decides when each of these threads runs the engine. Invariant: packets for other
//! processes and management datagrams are collected under the lock, and delivered by the same call.

mod claims;
mod control;
mod core;
pub(crate) mod entry;
pub(crate) mod group;
pub(crate) mod gsi;
mod identification;
pub(crate) mod multicast;
mod netdev;
mod objects;
mod observer;
pub(crate) mod outbox;
pub(crate) mod owners;
mod polling;
pub(crate) mod progress;
mod refused;
mod rows;
mod services;
mod sleep;
mod status;
pub(crate) mod tables;
mod timers;

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use transport::Instant;
use transport::chaos::Chaos;
use transport::cm::Cm;
use wire::Qpn;

pub(crate) use self::core::Core;

use crate::cm::{CmDriver, SharedPorts};
use crate::locked::Locked;
use crate::moderation::Moderator;
use crate::netdev::Gids;
use crate::port::{Port, PortProperties, RxQueues};
use crate::qp_numbers::QpIndex;
use crate::registry::Registry;
use crate::runtime::Runtime;
use crate::sched::{Posters, Trigger, Tuning};
use crate::stages::{Control, Hooks, Redirected};
use crate::status::Row;
use group::Place;
use gsi::Held;
use objects::ObjectList;
use observer::Faults;
use outbox::Outbox;
use polling::Polling;
use refused::RefusedWatch;
use services::{Claims, Routes, Services};
use tables::Tables;

/// Interval at which an ending process polls for the replies to its disconnect requests.
const CLOSING_POLL: Duration = Duration::from_micros(50);
/// An ending process waits for these replies for [`Cm::SHUTDOWN_MAX`] and this much longer: on a busy
/// machine they arrive late.
const CLOSING_SLACK: Duration = Duration::from_millis(25);

/// Device and inode number, which identify a file.
pub(crate) type FileId = (u64, u64);

/// The arguments of [`Engine::new`].
pub(crate) struct Parts {
    /// Name of the device.
    pub(crate) device: String,
    pub(crate) port: Box<dyn Port>,
    pub(crate) registry: Box<dyn Registry>,
    pub(crate) gids: Arc<Gids>,
    /// The RDMA ports of the domain.
    pub(crate) ports: SharedPorts,
    pub(crate) hooks: Hooks,
    /// See [`Services`].
    pub(crate) control: Option<Box<dyn Control>>,
    pub(crate) runtime: Runtime,
    pub(crate) tuning: Tuning,
}

/// The work that an engine has, for a simulation that checks that no thread sleeps past it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Due {
    /// When the engine must run although nothing arrives.
    pub deadline: Option<Instant>,
    /// A queue pair has packets to send, the port accepts them, and no ACK is expected that would wake the
    /// thread.
    pub has_ready: bool,
    /// A queue pair has packets to send, but is neither on the ready list nor blocked by the window of its
    /// flow.
    pub forgotten: Option<Qpn>,
    /// The progress thread leaves the port to polling threads.
    pub is_watching: bool,
    /// An application sleeps, or is about to, until a completion.
    pub has_sleeper: bool,
}

/// See the module documentation.
pub(crate) struct Engine {
    pub(crate) core: Mutex<Core>,
    posters: Posters,
    pub(crate) polling: Polling,
    pub(crate) services: Services,
    pub(crate) place: Place,
    pub(crate) moderator: Arc<Moderator>,
    pub(crate) objects: ObjectList,
    /// XRC domains that were opened with a file descriptor, by the identity of the file (ibv_open_xrcd(3)).
    pub(crate) xrc_files: Mutex<HashMap<FileId, Weak<dyn Any + Send + Sync>>>,
    runtime: Runtime,
    tuning: Tuning,
    /// See [`PortProperties`](crate::port::PortProperties).
    prefers_equal_packets: bool,
    tells_destinations_apart: bool,
}

impl Engine {
    /// An engine without its progress thread. `first`: the first engine of the device and the number of
    /// this one.
    pub(crate) fn new(parts: Parts, first: Option<(&Arc<Self>, usize)>) -> std::io::Result<Arc<Self>> {
        let Parts { device, port, registry, gids, ports, mut hooks, control, runtime, tuning } = parts;
        let slot = registry.slot();
        let PortProperties { prefers_equal_packets, tells_destinations_apart, .. } = port.properties();
        // The first engine updates the others.
        let has_monitor = first.is_none() && matches!(runtime, Runtime::Kernel);
        let monitor = if has_monitor { gids.monitor() } else { -1 };
        let table = gids.get();
        let _without = hooks.with(|stages| stages.set_engine(slot, runtime.clone()));
        let redirects = hooks.redirects();
        let core = Core::new(port, hooks, Tables::new(slot, &table), tuning);
        let services = Services {
            device,
            cm: Arc::new(CmDriver::new(slot, &table, runtime.clone(), tuning.keepalive_ns, ports)),
            registry,
            control,
            gids,
            monitor,
            held: Held::default(),
            refused: RefusedWatch::default(),
            redirects,
            routes: Routes::default(),
            claims: Claims::default(),
            faults: Faults::default(),
        };
        Ok(Arc::new(Self {
            core: Mutex::new(core),
            posters: Posters::new(),
            polling: Polling::new(&tuning, first.map(|(first, _)| first.polling.armed_cqs()))?,
            services,
            place: first.map(|(first, index)| Place::beside(first, index)).unwrap_or_default(),
            moderator: first.map(|(first, _)| Arc::clone(&first.moderator)).unwrap_or_default(),
            objects: ObjectList::default(),
            xrc_files: Mutex::default(),
            runtime,
            tuning,
            prefers_equal_packets,
            tells_destinations_apart,
        }))
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The time now, of the runtime's clock.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// The lock of a thread that posts.
    #[inline]
    pub(crate) fn lock_to_post(&self) -> Locked<'_, Core> {
        Locked::briefly(self.posters.lock(&self.runtime, &self.core, self.tuning.lock_spin_ns))
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, Core> {
        Locked::new(self.runtime.lock(&self.core))
    }

    /// Whether [`Core::bind_flow`] uses where a destination is.
    pub(crate) fn tells_destinations_apart(&self) -> bool {
        self.tells_destinations_apart
    }

    pub(crate) fn prefers_equal_packets(&self) -> bool {
        // Chaos places the packets of a message in any order, so the peer must see which belong together.
        self.prefers_equal_packets && self.services.faults.get().is_none()
    }

    /// From now on this engine has the faults of `chaos`.
    pub(crate) fn set_chaos(&self, chaos: &Arc<Chaos>) {
        if self.services.faults.set(Arc::clone(chaos)).is_ok() {
            let Tables { observer, mrs, .. } = &mut self.lock().tables;
            observer.disturb(chaos, mrs);
        }
    }

    /// The faults of `--chaos`.
    pub(crate) fn chaos(&self) -> Option<&Arc<Chaos>> {
        self.services.faults.get()
    }

    /// See [`Polling::has_sleeper`].
    pub(crate) fn has_sleeper(&self) -> bool {
        self.polling.has_sleeper(&self.tuning)
    }

    /// Processes one batch in the calling thread, unless another thread holds the lock. Returns whether
    /// packets arrived.
    pub(crate) fn poll_inline(&self) -> bool {
        let found = self.try_poll();
        self.polling.end(found, &self.runtime, &self.tuning);
        found
    }

    #[inline]
    fn try_poll(&self) -> bool {
        let number = self.polling.begin();
        let Some(mut core) = self.runtime.try_lock(&self.core) else {
            // The progress thread may hold the lock and wait for the CPU that this thread occupies, so
            // yield. (While an application sleeps, the progress thread holds the lock only briefly.)
            if !self.polling.is_watching() && !self.has_sleeper() {
                self.runtime.yield_now();
            }
            return false;
        };
        if !self.polling.looks_at_clock(number) && core.is_quiet() {
            return false;
        }
        let mut core = Locked::briefly(core);
        core.is_polled = self.polling.is_watching();
        let rounds = Cell::new(0);
        let begin_round = || {
            rounds.set(rounds.get() + 1);
            self.now()
        };
        let batches = core.poll(begin_round, self.polling.queues(number), Trigger::Poll);
        self.polling.add_steps(rounds.get() + batches);
        self.unlock_and_pause(core);
        batches > 0
    }

    /// Processes batches of the queues until they are empty, up to a limit. Sends held messages too. Returns
    /// the number of batches received. `is_polled`: the calling thread is of the application and sees the
    /// completions at once.
    pub(crate) fn poll_batches(&self, queues: RxQueues, is_polled: bool) -> usize {
        let mut batches = 0;
        for _ in 0..self.tuning.progress_batches {
            let mut core = self.lock();
            core.is_polled = is_polled;
            let received = core.poll(|| self.now(), queues, Trigger::Flush);
            self.unlock_and_pause(core);
            batches += received;
            if received == 0 {
                break;
            }
        }
        batches
    }

    /// Processes some batches of all queues, and runs connection management. Returns the number of
    /// batches and events.
    fn poll_all(&self) -> usize {
        let batches = self.poll_batches(RxQueues::ALL, false);
        self.offer_held();
        self.take_refused();
        batches + self.services.cm.poll(self.now(), self)
    }

    /// Serves the port, connection management, the registry and the control socket. Returns the number of
    /// batches, events and records.
    pub(crate) fn serve_everything(&self) -> usize {
        self.serve_control();
        self.poll_all() + self.serve_members()
    }

    /// Serves everything but the port.
    pub(crate) fn serve_control_plane(&self) {
        self.serve_members();
        self.offer_held();
        self.take_refused();
        self.services.cm.poll(self.now(), self);
        self.serve_control();
    }

    /// As [`unlock_and_deliver`](Self::unlock_and_deliver); then leaves the CPU to the reader of a recording
    /// for which the packets wait.
    #[inline]
    fn unlock_and_pause(&self, core: Locked<'_, Core>) {
        let waits = core.hooks.is_waiting_for_reader();
        self.unlock_and_deliver(core);
        if waits {
            self.runtime.sleep(&[], self.now().plus_ns(self.tuning.port_retry_ns));
        }
    }

    /// Releases the lock, then [delivers](Self::deliver) what the poll has collected.
    pub(crate) fn unlock_and_deliver(&self, mut core: Locked<'_, Core>) {
        self.moderator.expire(|| self.now());
        self.wake_for(&core);
        if !core.has_outbox() {
            self.unlock_and_spread(core);
            return;
        }
        core.forbid_cancellation();
        let outbox = core.take_outbox();
        let _cancellation = self.unlock_and_spread(core);
        self.deliver(outbox);
    }

    /// Hands what a poll has collected to connection management and to other processes.
    fn deliver(&self, outbox: Outbox) {
        let Outbox { mads, misrouted, redirected, established, is_peer_silent } = outbox;
        if is_peer_silent {
            self.look_for_refused();
        }
        for mad in mads {
            self.take_mad(mad);
        }
        for (slot, packet) in &misrouted {
            // A process that has exited or does not keep up loses the packet; the transport retransmits it.
            let _lost = self.services.registry.forward(*slot, &packet.batch());
        }
        for Redirected { slot, passes, packet } in &redirected {
            let outcome = self.services.registry.forward(*slot, &packet.batch());
            let now_ns = self.runtime.now_ns();
            if !self.services.redirects.as_ref().is_some_and(|counts| counts.count(outcome, now_ns)) {
                continue;
            }
            let (mut core, now) = (self.lock(), self.now());
            if *passes {
                core.receive_passed(now, &packet.batch());
                core.transmit(now);
                self.unlock_and_deliver(core);
            } else {
                core.hooks.tap_request(&packet.batch());
            }
        }
        self.with_first(|first| {
            for qpn in established {
                first.services.cm.qp_established(qpn);
            }
            first.services.cm.poll(first.now(), first);
        });
    }

    /// Rings the doorbell: `work_requests` were posted to a queue pair in one list. `sched/departure.rs`
    /// decides whether they leave now.
    #[inline]
    pub(crate) fn ring_doorbell(&self, core: &mut Core, index: QpIndex, work_requests: usize) {
        if core.post(|| self.now(), index, work_requests) {
            self.wake_for(core);
        }
    }

    /// The descriptors that the progress thread sleeps on while it serves the engine. The monitor of the
    /// netdev is last.
    pub(crate) fn wait_fds(&self) -> Vec<RawFd> {
        let poll_fds = self.lock().port.properties().poll_fds;
        let others = [
            self.services.registry.listener_fd(),
            self.polling.progress.fd(),
            self.control_fd(),
            self.services.monitor,
        ];
        [&poll_fds[..], &others].concat()
    }

    /// The descriptors that the progress thread sleeps on while application threads poll.
    pub(crate) fn watch_fds(&self) -> [RawFd; 3] {
        [self.polling.progress.fd(), self.control_fd(), self.services.monitor]
    }

    /// Receives packets that other processes of this host forwarded, checks the hosts that they have found
    /// silent, and sends the disconnect notices of dead processes. Returns the number of records.
    fn serve_members(&self) -> usize {
        let records = self.receive_forwarded();
        for (src, dst) in self.services.registry.take_silent_hosts() {
            self.with_first(|first| first.services.cm.handle_silent_host(first.now(), src, dst));
        }
        let rescan_at = self.services.registry.rescan_at();
        for notice in self.services.registry.take_disconnect_notices() {
            self.services.cm.send_disconnect_notice(self.now(), notice);
        }
        if self.services.registry.rescan_at() != rescan_at {
            // An application thread may serve the members while the progress thread sleeps.
            self.wake_before(self.services.registry.rescan_at().map(Instant));
        }
        records
    }

    /// Receives packets that other processes of this host forwarded. Returns the number of batches.
    fn receive_forwarded(&self) -> usize {
        let mut batches = 0;
        self.services.registry.poll_listener(&mut |batch| {
            batches += 1;
            let mut core = self.lock();
            let now = self.now();
            core.place_late(now);
            core.receive_forwarded(now, batch);
            core.transmit(now);
            self.unlock_and_deliver(core);
        });
        batches
    }

    /// Name and value of every counter. The caller does not hold the engine's lock: a fork takes that of the
    /// connection manager first.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = self.lock().rows();
        rows.push(("member_connects", self.services.registry.connects()));
        rows.extend(self.services.held.rows());
        rows.extend(self.services.cm.rows());
        rows
    }

    /// When the engine must run again even if nothing arrives.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let now = self.now();
        let core = self.lock().next_deadline(|| now);
        let rescan = self.services.registry.rescan_at().map(Instant);
        let (held, refused) = (self.services.held.next_offer(now), self.services.refused.next());
        [core, self.moderator.next(), self.services.cm.poll_timeout(), held, refused, rescan]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the pending work, for the simulator's check; `None` while another thread holds the lock.
    pub(crate) fn due(&self) -> Option<Due> {
        let core = self.core.try_lock().ok()?;
        let has_ready = core.tables.has_stranded_qp();
        let forgotten = core.tables.forgotten_qp();
        drop(core);
        let is_watching = self.polling.is_watching();
        let has_sleeper = self.has_sleeper();
        Some(Due { deadline: self.next_deadline(), has_ready, forgotten, is_watching, has_sleeper })
    }

    /// Wakes the progress thread if it would sleep past `deadline`.
    pub(crate) fn wake_before(&self, deadline: Option<Instant>) {
        self.polling.wake_before(deadline, &self.runtime);
    }

    /// Wakes the progress thread if it would sleep past a timer that this thread has armed in `core`, or past
    /// the release time of a packet that a hook delays. The application may stop polling after this call.
    #[inline]
    pub(crate) fn wake_for(&self, core: &Core) {
        if self.polling.progress.until_ns() != 0 {
            self.wake_before(Instant::earliest(core.next_deadline(|| self.now()), self.moderator.next()));
        }
    }

    /// See [`Polling::hand_over`].
    pub(crate) fn hand_over(&self) {
        self.polling.hand_over(&self.runtime);
    }

    /// Processes the packets that have arrived; see [`Core::drain`]. Other processes of this host may have
    /// received and forwarded some of them. While application threads poll, the progress thread reads those
    /// only every few milliseconds.
    pub(crate) fn drain(&self) {
        self.receive_forwarded();
        let mut core = self.lock();
        core.drain(self.now(), RxQueues::SLOT);
        self.unlock_and_deliver(core);
    }

    /// Destroys a queue pair; its peer gets the last ACK first.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        let mut core = self.lock();
        core.remove_qp(self.now(), qpn);
        self.wake_for(&core);
        self.unlock_and_spread(core);
    }

    /// Sends the last ACKs of all queue pairs.
    pub(crate) fn release_acks(&self) {
        self.lock().send_last_acks(self.now());
    }

    /// Ends the connections of the connection manager: agrees to disconnect requests of peers, and waits
    /// some milliseconds for the replies to its own.
    pub(crate) fn send_disconnects(&self) {
        let until = self.now() + (Cm::SHUTDOWN_MAX + CLOSING_SLACK);
        self.services.cm.send_disconnects(self.now(), self);
        self.poll_all();
        while self.services.cm.is_leaving() && self.now() < until {
            self.poll_all();
            self.runtime.sleep(&[], self.now() + CLOSING_POLL);
        }
    }

    /// Tells the reader of a capture what the engine knows, at the end of the process.
    pub(crate) fn tell_recording(&self) {
        if !self.lock().tables.observer.is_recorded() {
            return;
        }
        let (now, rows) = (self.now(), self.rows());
        let tables = &mut self.lock().tables;
        let indices: Vec<QpIndex> = tables.qps_mut().map(|(index, _)| index).collect();
        indices.into_iter().for_each(|index| tables.tell_used(now, index));
        tables.observer.tell_counters(&rows);
    }

    /// Sends the packets that a hook still delays.
    pub(crate) fn release_held(&self) {
        let Core { hooks, port, .. } = &mut *self.lock();
        hooks.release(u64::MAX, port.as_mut(), &mut |_| {});
    }
}

impl Drop for Engine {
    /// Wakes the progress thread, which ends then.
    fn drop(&mut self) {
        self.polling.progress.wake();
    }
}
