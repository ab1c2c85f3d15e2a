//! The applications: threads that post, poll, sleep, spin and stop as real programs do.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roxie::runtime::World;
use roxie::verbs::{CompChannel, Cq, Device, Qp};
use sys::{EventFd, PollFd};
use transport::{Sge, Wc};

use super::endpoint::{Endpoint, RECEIVE};
use super::plan::{App, Kind};
use super::threads::Threads;

/// How long an application sleeps for an event before it looks at its peers again.
const SLEEP_NS: u64 = 1_000_000;
/// Time between two looks of an application that looks rarely.
const RARELY_NS: u64 = 60_000;
/// What a poll in a loop takes, at first and after many in vain.
const POLL_NS: (u64, u64) = (60, 2_000);
/// After so many polls in vain the rest of the loop takes so long (nanoseconds): a long wait has fewer steps.
const LONG_WAIT: (u64, u64) = (600, 40_000);
/// How late an armed CQ's event may be seen (nanoseconds): threads lose their CPU for some microseconds.
const EVENT_LATE_NS: u64 = 250_000;
/// After so many polls in vain, an application that waits for a connection manager looks only so often.
const IDLE_POLLS: u64 = 400;
const IDLE_NS: u64 = 4_000_000;

/// One process: a device, and the ends of connections that complete on its CQ.
pub(super) struct Process {
    pub(super) number: usize,
    pub(super) app: App,
    pub(super) threads: Arc<Threads>,
    pub(super) device: Mutex<Option<Device>>,
    pub(super) cq: Cq,
    /// Receives complete here; in every second process this is `cq`.
    pub(super) recv_cq: Cq,
    /// No queue pair completes here; polled between others it runs the engine while `cq` has entries left.
    pub(super) empty_cq: Cq,
    pub(super) channel: CompChannel,
    pub(super) endpoints: Mutex<Vec<Endpoint>>,
    /// Threads that run.
    pub(super) running: AtomicUsize,
    /// Readable when an end has done its work, or the threads of the application have ended.
    pub(super) work_ended: EventFd,
    /// Its thread shares a CPU with that of another application.
    pub(super) shares_cpu: bool,
    /// A peer may vanish, so work may fail.
    pub(super) may_fail: bool,
    /// Work may have to wait for timeouts.
    pub(super) may_wait: bool,
    /// Its connections are made by the connection manager.
    pub(super) uses_cm: bool,
    /// What its device retransmits is counted.
    pub(super) is_counted: bool,
}

impl Process {
    pub(super) fn endpoints(&self) -> MutexGuard<'_, Vec<Endpoint>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of thread `thread`.
    pub(super) fn run(self: Arc<Self>, thread: usize) {
        if let Err(what) = self.serve(thread) {
            self.threads.fail(format!("process {}: {what}", self.number));
        }
        self.leave();
    }

    /// A thread has ended; the last one closes the device.
    pub(super) fn leave(&self) {
        match self.running.fetch_sub(1, Ordering::AcqRel) {
            1 => self.close(),
            2 => self.work_ended.signal(1),
            _ => {}
        }
    }

    fn serve(&self, thread: usize) -> Result<(), String> {
        let (mut idle, mut posted_before, mut pause_ns) = (0, 0, self.app.pause_ns);
        while !self.threads.is_over() {
            let taken = self.take()?;
            let posted = self.post(thread)?;
            posted_before += posted;
            if pause_ns > 0 && posted_before >= self.app.pause_after {
                self.threads.compute(std::mem::take(&mut pause_ns));
            }
            if self.has_ended() {
                return Ok(());
            }
            idle = if taken + posted > 0 { 0 } else { idle + 1 };
            self.wait(idle)?;
        }
        Ok(())
    }

    /// Takes completions as this kind of application does; returns how many.
    fn take(&self) -> Result<usize, String> {
        let limit = match self.app.kind {
            Kind::Portions => 16,
            Kind::Poll | Kind::SpinOnMemory => 4,
            Kind::Events | Kind::Rarely => usize::MAX,
        };
        if self.app.kind == Kind::SpinOnMemory && self.needs_no_completion() {
            return Ok(0);
        }
        let mut taken = 0;
        for (cq, is_for_receives) in self.cqs() {
            while taken < limit
                && let Some(wc) = cq.poll_one()
            {
                taken += 1;
                self.complete_in(is_for_receives, &wc)?;
            }
        }
        if self.app.kind == Kind::Portions && self.empty_cq.poll_one().is_some() {
            return Err("a completion of no queue pair".to_owned());
        }
        Ok(taken)
    }

    /// The CQs, and whether only receives or only sends complete there; `None` if they are one.
    fn cqs(&self) -> [(&Cq, Option<bool>); 2] {
        let is_for_receives = |is| (!self.number.is_multiple_of(2)).then_some(is);
        [(&self.cq, is_for_receives(false)), (&self.recv_cq, is_for_receives(true))]
    }

    fn complete_in(&self, is_for_receives: Option<bool>, wc: &Wc) -> Result<(), String> {
        let is_receive = wc.wr_id & RECEIVE != 0;
        if is_for_receives.is_some_and(|is| is != is_receive) {
            return Err(format!("the completion of {:#x} is in the CQ of the other kind", wc.wr_id));
        }
        self.complete(wc)
    }

    fn complete(&self, wc: &Wc) -> Result<(), String> {
        let mut endpoints = self.endpoints();
        let endpoint = endpoints.iter_mut().find(|endpoint| endpoint.number == wc.wr_id >> 32);
        let endpoint = endpoint.ok_or_else(|| format!("a completion of end {}", wc.wr_id >> 32))?;
        endpoint.complete(wc, self.may_fail)
    }

    /// Whether only memory tells what happens next: nothing that was posted is incomplete, and no SEND is
    /// expected.
    fn needs_no_completion(&self) -> bool {
        let needs_none = |endpoint: &Endpoint| {
            let has_posted = endpoint.is_ping_pong || endpoint.has_sent_all();
            has_posted && !endpoint.awaits_completion() && endpoint.has_received_all()
        };
        self.endpoints().iter().all(needs_none)
    }

    /// Posts what the depth allows on the connections of this thread; returns the number of work requests.
    fn post(&self, thread: usize) -> Result<usize, String> {
        let count = self.endpoints().len();
        let mut posted = 0;
        for at in (thread..count).step_by(self.app.threads) {
            let (qp, number, memory, list) = {
                let endpoint = &mut self.endpoints()[at];
                let list = endpoint.take_list(self.app.depth);
                (endpoint.qp.clone(), endpoint.number, endpoint.memory(), list)
            };
            if !list.is_empty() {
                posted += list.len();
                let result = Endpoint::post(&qp, number, &memory, &list);
                let endpoint = &mut self.endpoints()[at];
                if result.is_err() && (self.may_fail || endpoint.may_break) {
                    endpoint.is_broken = true;
                } else {
                    result?;
                }
            }
        }
        Ok(posted)
    }

    /// Whether every connection has done its work, and the peers have as well.
    fn has_ended(&self) -> bool {
        let spins = self.app.kind == Kind::SpinOnMemory;
        let mut ended = true;
        for endpoint in self.endpoints().iter() {
            let peer_is_dead = self.threads.is_dead(endpoint.peer_process);
            // In a ping-pong with a dead peer the next message is never due.
            let has_sent_all = endpoint.has_sent_all() || endpoint.is_ping_pong;
            if peer_is_dead && endpoint.has_begun() && has_sent_all && !endpoint.awaits_completion() {
                continue;
            }
            let has_all = endpoint.has_all() && (!spins || endpoint.sees_writes());
            if has_all && endpoint.has_begun() && endpoint.finish() {
                self.work_ended.signal(1);
            }
            ended &= has_all
                && endpoint.has_begun()
                && (endpoint.closes_early || endpoint.is_broken || endpoint.peer_is_done());
        }
        ended
    }

    /// Whether the work of a connection is not complete. In a calm run its packets then leave and
    /// arrive as fast as the network permits.
    fn is_working(&self) -> bool {
        let is_at_work = |end: &Endpoint| end.has_begun() && !(end.has_all() && end.peer_is_done());
        self.endpoints().iter().any(is_at_work)
    }

    fn wait(&self, idle: u64) -> Result<(), String> {
        match self.app.kind {
            // A connection takes up to minutes.
            _ if self.uses_cm && idle > IDLE_POLLS && (self.may_wait || !self.is_working()) => {
                self.threads.compute(IDLE_NS);
            }
            Kind::Rarely => self.threads.compute(RARELY_NS),
            Kind::Events if idle > 0 => return self.sleep(),
            // The other thread of this CPU waits until this one yields, after so many polls.
            _ if self.shares_cpu => self.threads.compute(POLL_NS.0),
            _ if idle > LONG_WAIT.0 => self.threads.compute(LONG_WAIT.1),
            _ => self.threads.compute((POLL_NS.0 << (idle / 8).min(6)).min(POLL_NS.1)),
        }
        Ok(())
    }

    /// ibv_req_notify_cq, a last look, sleep, ibv_get_cq_event.
    fn sleep(&self) -> Result<(), String> {
        self.cq.req_notify(false);
        self.recv_cq.req_notify(false);
        if self.take()? > 0 || self.has_ended() {
            return Ok(());
        }
        let fd = self.channel.fd();
        self.threads.sleep(&[fd], self.threads.now_ns() + SLEEP_NS);
        if is_readable(fd) {
            match self.channel.get_event() {
                // Another thread of the application may have taken it.
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.app.threads > 1 => {}
                event => drop(event.map_err(|error| format!("get_cq_event: {error}"))?),
            }
            return Ok(());
        }
        let (now, is_disturbed) = (self.threads.now_ns(), self.threads.was_disturbed(self.number));
        if let Some(since) = self.threads.network.waits_since(self.number)
            && now > since + EVENT_LATE_NS
            && !is_disturbed
        {
            return Err(format!("a packet has waited since {since}, and a CQ is armed"));
        }
        for (cq, is_for_receives) in self.cqs() {
            let Some((wc, added_ns)) = cq.poll_timed() else { continue };
            let late_ns = 1_000 * u64::from(self.app.moderation.1) + EVENT_LATE_NS;
            if now > added_ns + late_ns && !is_disturbed && !is_readable(fd) {
                return Err(format!("the completion of an armed CQ at {added_ns} has raised no event"));
            }
            self.complete_in(is_for_receives, &wc)?;
        }
        Ok(())
    }

    /// The last thread checks the memory, destroys the queue pairs and closes the device.
    fn close(&self) {
        let endpoints = std::mem::take(&mut *self.endpoints());
        if !self.threads.is_over() {
            for endpoint in endpoints.iter().filter(|endpoint| !endpoint.is_broken && endpoint.peer_is_done())
            {
                if let Err(what) = endpoint.check_writes() {
                    self.threads.fail(format!("process {}: {what}", self.number));
                }
            }
        }
        drop(endpoints);
        if self.is_counted
            && let Some(device) = &*self.device.lock().unwrap_or_else(PoisonError::into_inner)
        {
            self.threads.count(&device.counters());
        }
        self.threads.forget_device(self.number);
        drop(self.device.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// What the thread of the connection manager asks and tells.
impl Process {
    fn with_end<R>(&self, number: u64, f: impl FnOnce(&mut Endpoint) -> R) -> Option<R> {
        self.endpoints().iter_mut().find(|endpoint| endpoint.number == number).map(f)
    }

    /// The queue pair of an end, and its receives.
    pub(super) fn queue_pair(&self, number: u64) -> (Qp, Vec<(u64, Sge)>) {
        let of = |endpoint: &mut Endpoint| (endpoint.qp.clone(), endpoint.receives_to_post());
        self.with_end(number, of).expect("the plan names ends of this process")
    }

    /// The connection of an end is established.
    pub(super) fn begin(&self, number: u64) {
        self.with_end(number, |endpoint| endpoint.is_connected = true);
    }

    /// The connection of an end has failed, or ended too early.
    pub(super) fn break_end(&self, number: u64) {
        self.with_end(number, |endpoint| {
            endpoint.is_broken = true;
            endpoint.own.is_broken.store(true, Ordering::Relaxed);
        });
    }

    pub(super) fn is_broken(&self, number: u64) -> bool {
        self.with_end(number, |endpoint| endpoint.is_broken) == Some(true)
    }

    /// An end has no more work.
    pub(super) fn is_done(&self, number: u64) -> bool {
        self.with_end(number, |endpoint| endpoint.has_all()) == Some(true)
    }

    /// The peer of an end could not connect.
    pub(super) fn has_broken_peer(&self, number: u64) -> bool {
        self.with_end(number, |endpoint| endpoint.peer.is_broken.load(Ordering::Relaxed)) == Some(true)
    }
}

fn is_readable(fd: std::os::fd::RawFd) -> bool {
    sys::poll(&mut [PollFd::readable(fd)], Some(0)).is_ok_and(|ready| ready > 0)
}
