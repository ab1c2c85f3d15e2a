//! Connections made by the connection manager: a thread of each process that listens, connects, accepts and
//! disconnects.
//!
//! Goal: every attempt to connect ends, and after a disconnect both sides hear of it, within the time that
//! the protocol gives itself. What the peer received before it disconnected completes, also if this end
//! disconnects as soon as it hears of it. Method: the thread sleeps on its event channel as a program does,
//! and looks at the clock.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use roxie::cm::{CmEvent, CmEventKind, EventChannel, Id, PortSpace};
use roxie::runtime::World;
use transport::RecvWr;
use wire::Gid;

use super::app::Process;
use super::frame::PORT;
use super::hosts::HostDevices;
use super::kills::LATE_NS;
use super::plan::Plan;
use super::threads::Threads;

/// Level and name of the option with the local ACK timeout (rdma_cma.h).
const ACK_TIMEOUT: (i32, i32) = (0, 3);
const RESOLVE_MAX: Duration = Duration::from_secs(2);
/// Most time of an attempt: 16 requests and 16 replies of 4.6 s, and a service timeout of 65 s.
const ATTEMPT_NS: u64 = 220_000_000_000;
/// Most time of a disconnect: 16 requests of 4.6 s.
const DISCONNECT_NS: u64 = 80_000_000_000;
/// How long after a disconnect of both ends the application may need to take the last completions.
const GRACE_NS: u64 = 50_000_000;
/// How long the thread sleeps while it waits for the threads of the application.
const LOOK_NS: u64 = 1_000_000;

/// What the plan says about the connection of one end.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndPlan {
    /// Number of the end.
    pub(super) number: u64,
    /// The process or device that has it.
    pub(super) process: usize,
    /// Nothing in the plan excuses a connection that fails.
    pub(super) must_work: bool,
    /// The netdev of one of its two devices is removed.
    pub(super) may_be_lost: bool,
    /// It sends the request; else it listens.
    pub(super) is_active: bool,
    /// The passive end rejects the request.
    pub(super) is_rejected: bool,
    /// It disconnects when its process has ended, and does not wait for its peer to do so.
    pub(super) leaves_first: bool,
    /// It disconnects as soon as it has what it waits for.
    pub(super) closes_early: bool,
    /// When the active end begins.
    pub(super) at_ns: u64,
    pub(super) peer: usize,
    pub(super) peer_address: SocketAddr,
    /// If the peer is killed, this end waits until it is told, until then at the latest (nanoseconds), or for
    /// so long after it has begun to wait.
    pub(super) told: Option<(u64, u64)>,
}

/// How far an end is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Idle,
    /// Resolving, connecting or accepted, since then.
    Connecting(u64),
    /// Since then.
    Established(u64),
    /// The peer has disconnected, and this end after it at that time.
    PeerLeft(u64),
    /// This end has disconnected, at that time.
    Leaving(u64),
    Ended,
}

struct End {
    plan: EndPlan,
    phase: Phase,
    id: Option<Id>,
}

/// The thread's state.
pub(super) struct Connections {
    /// This process; with several devices, one for each.
    processes: Vec<Arc<Process>>,
    address: SocketAddr,
    /// The devices among which the listener chooses, if there may be several.
    devices: Option<Arc<HostDevices>>,
    channel: EventChannel,
    listener: Option<Id>,
    /// When it begins to listen.
    listens_at_ns: u64,
    ends: Vec<End>,
    timeout: u8,
    /// The process exists until the end of the run, also without connections.
    stays: bool,
}

/// The ends of a process.
pub(super) fn ends_of(plan: &Plan, process: usize) -> Vec<EndPlan> {
    let Some(cm) = &plan.extension.cm else { return Vec::new() };
    let mut found = Vec::new();
    for (n, (connection, cm)) in plan.connections.iter().zip(cm).enumerate() {
        for end in 0..2 {
            if connection.ends[end] == process {
                let peer = connection.ends[1 - end];
                let may_be_lost = plan.loses_netdev(process) || plan.loses_netdev(peer);
                let is_sure = plan.is_calm() || plan.extension.hosts.is_some();
                found.push(EndPlan {
                    number: 2 * n as u64 + end as u64,
                    process,
                    must_work: is_sure && !may_be_lost,
                    may_be_lost,
                    is_active: end == cm.active,
                    is_rejected: cm.is_rejected,
                    leaves_first: cm.leaves_first[end],
                    closes_early: connection.closes_early[end],
                    at_ns: cm.at_ns,
                    peer,
                    peer_address: SocketAddr::new(plan.addresses[peer], PORT + plan.listener_of(peer) as u16),
                    told: plan.kills().and_then(|kills| {
                        let told_ns = kills.told_ns? + LATE_NS;
                        Some((kills.gone_ns(peer)? + told_ns, told_ns))
                    }),
                });
            }
        }
    }
    found
}

impl Connections {
    /// `processes`: a process, or the devices of a host.
    pub(super) fn new(plan: &Plan, processes: Vec<Arc<Process>>) -> Self {
        let number = processes[0].number;
        let devices =
            plan.extension.hosts.as_ref().map(|hosts| Arc::new(HostDevices::new(plan, hosts, &processes)));
        let address = if devices.is_some() { Ipv4Addr::UNSPECIFIED.into() } else { plan.addresses[number] };
        let channel = EventChannel::new().expect("descriptors");
        channel.set_nonblocking().expect("an open descriptor");
        let end = |plan| End { plan, phase: Phase::Idle, id: None };
        Self {
            address: SocketAddr::new(address, PORT + number as u16),
            devices,
            channel,
            listener: None,
            listens_at_ns: super::START_NS + plan.extension.listens_late_ns,
            ends: processes.iter().flat_map(|process| ends_of(plan, process.number)).map(end).collect(),
            processes,
            timeout: plan.timeout(),
            stays: plan.kills().is_some_and(|kills| number >= kills.peers),
        }
    }

    /// The body of the thread.
    pub(super) fn run(mut self) {
        let processes = self.processes.clone();
        if let Err(what) = self.serve() {
            processes[0].threads.fail(format!("process {}: {what}", processes[0].number));
        }
        for end in &mut self.ends {
            if let Some(id) = end.id.take() {
                id.destroy();
            }
        }
        if let Some(listener) = self.listener.take() {
            listener.destroy();
        }
        drop(self);
        processes.iter().for_each(|process| process.leave());
    }

    /// The process that has an end.
    fn process(&self, plan: &EndPlan) -> &Process {
        let of = self.processes.iter().find(|process| process.number == plan.process);
        of.expect("the plan names ends of these processes")
    }

    fn threads(&self) -> Arc<Threads> {
        Arc::clone(&self.processes[0].threads)
    }

    fn serve(&mut self) -> Result<(), String> {
        let threads = self.threads();
        while !threads.is_over() {
            self.listen(threads.now_ns())?;
            // What it says is looked at below.
            self.processes.iter().for_each(|process| drop(process.work_ended.take()));
            loop {
                match self.channel.get_event() {
                    Ok(event) => self.handle(event)?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(format!("get_cm_event: {error}")),
                }
            }
            let now = threads.now_ns();
            for at in 0..self.ends.len() {
                self.advance(at, now)?;
            }
            if !self.stays && self.ends.iter().all(|end| end.phase == Phase::Ended) {
                return Ok(());
            }
            let is_waiting = |end: &End| {
                let is_over = self.stays && end.phase == Phase::Ended;
                is_over || matches!(end.phase, Phase::Connecting(_) | Phase::Leaving(_))
            };
            let sleep_ns = if self.ends.iter().all(is_waiting) { 1_000_000_000 } else { LOOK_NS };
            let ended = self.processes.iter().map(|process| process.work_ended.as_raw_fd());
            let fds: Vec<_> = ended.chain([self.channel.fd()]).collect();
            threads.sleep(&fds, now + sleep_ns);
        }
        Ok(())
    }

    /// Begins to listen, if an end is passive and it is time.
    fn listen(&mut self, now: u64) -> Result<(), String> {
        if self.must_listen() && now >= self.listens_at_ns {
            let listener = self.new_id(&self.processes[0])?;
            listener.bind_addr(self.address).map_err(|error| format!("bind_addr: {error}"))?;
            listener.listen(0).map_err(|error| format!("listen: {error}"))?;
            self.listener = Some(listener);
        }
        Ok(())
    }

    /// An end is passive, and nothing listens yet.
    fn must_listen(&self) -> bool {
        self.listener.is_none() && self.ends.iter().any(|end| !end.plan.is_active)
    }

    /// An identifier of a process, or of any device of a host.
    fn new_id(&self, process: &Process) -> Result<Id, String> {
        let (channel, ps, context) = (&self.channel, PortSpace::Tcp, process.channel.context());
        match self.devices.clone() {
            None => Id::new(context, channel, ps, 0).map_err(|error| format!("create_id: {error}")),
            Some(devices) => Id::of_any(devices, channel, ps, ps.qp_type(), 0)
                .map_err(|error| format!("create_id: {error}")),
        }
    }

    /// What an end does without an event.
    fn advance(&mut self, at: usize, now: u64) -> Result<(), String> {
        let End { plan, phase, .. } = self.ends[at];
        let is_peer_dead = self.threads().is_dead(plan.peer);
        let mine_have_ended = self.process(&plan).running.load(Ordering::Acquire) == 1;
        match phase {
            // No connection begins at a device without a netdev.
            Phase::Idle if plan.may_be_lost && !self.threads().network.is_up(plan.process) => self.end(at),
            // Only a minute of unanswered messages would tell this end.
            Phase::Connecting(_) | Phase::Established(_) | Phase::Leaving(_)
                if plan.may_be_lost && self.has_ended_elsewhere(&plan) =>
            {
                self.end(at);
            }
            // While a device is opened, requests would wait too long for their listener.
            Phase::Idle if self.devices.is_some() && self.must_listen() => {}
            Phase::Idle if plan.is_active && now >= plan.at_ns => {
                let id = self.new_id(self.process(&plan))?;
                let devices = self.devices.as_ref();
                let src = devices.and_then(|devices| devices.source(plan.process, plan.peer_address.ip()));
                let resolved = id.resolve_addr(src, plan.peer_address, RESOLVE_MAX);
                resolved.map_err(|error| format!("resolve_addr: {error}"))?;
                (self.ends[at].id, self.ends[at].phase) = (Some(id), Phase::Connecting(now));
            }
            // No request comes from a dead process, and none after its attempt has ended.
            Phase::Idle if !plan.is_active && (is_peer_dead || self.has_ended_elsewhere(&plan)) => {
                self.end(at);
            }
            Phase::Connecting(since) if now > since + ATTEMPT_NS => {
                return Err(format!("end {}: no end of an attempt to connect", plan.number));
            }
            Phase::Leaving(since) if now > since + DISCONNECT_NS => {
                return Err(format!("end {}: no DISCONNECTED after a disconnect", plan.number));
            }
            Phase::Leaving(since) => self.check_told(&plan, since, now)?,
            Phase::Established(since) => {
                let is_broken = self.process(&plan).is_broken(plan.number);
                if !is_broken {
                    self.check_told(&plan, since, now)?;
                }
                let leaves_early = plan.closes_early && self.process(&plan).is_done(plan.number);
                let leaves_dead = is_peer_dead && plan.told.is_none();
                let leaves = leaves_early || (mine_have_ended && (plan.leaves_first || leaves_dead));
                if is_broken || leaves {
                    self.disconnect(at)?;
                    self.ends[at].phase = Phase::Leaving(now);
                }
            }
            Phase::PeerLeft(since) => {
                let is_done = self.process(&plan).is_done(plan.number);
                if is_done || now > since + GRACE_NS {
                    if !is_done && plan.must_work {
                        return Err(format!(
                            "end {}: its peer left before its work was complete",
                            plan.number
                        ));
                    }
                    if !is_done {
                        self.process(&plan).break_end(plan.number);
                    }
                    self.end_of_connection(at);
                }
            }
            Phase::Ended => {
                // As programs do. If both ends have disconnected at once, this is the reply that the peer
                // waits for when the request of this end was lost.
                if let Some(id) = self.ends[at].id.take() {
                    id.destroy();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that the peer of a killed end is told in time. It has waited since then.
    fn check_told(&self, plan: &EndPlan, since: u64, now: u64) -> Result<(), String> {
        match plan.told {
            Some((latest_ns, told_ns)) if now > latest_ns.max(since + told_ns) => {
                let number = plan.number;
                Err(format!("end {number}: its peer was killed, and at {now} it is not told"))
            }
            _ => Ok(()),
        }
    }

    fn disconnect(&self, at: usize) -> Result<(), String> {
        let Some(id) = &self.ends[at].id else { return Ok(()) };
        id.disconnect().map_err(|error| format!("disconnect: {error}"))
    }

    /// The active end of this passive one has given up, or has been refused.
    fn has_ended_elsewhere(&self, plan: &EndPlan) -> bool {
        self.process(plan).has_broken_peer(plan.number)
    }

    /// An attempt has failed.
    fn end(&mut self, at: usize) {
        let plan = self.ends[at].plan;
        self.process(&plan).break_end(plan.number);
        self.end_of_connection(at);
    }

    fn end_of_connection(&mut self, at: usize) {
        self.ends[at].phase = Phase::Ended;
    }

    fn handle(&mut self, event: CmEvent) -> Result<(), String> {
        let now = self.threads().now_ns();
        if event.kind == CmEventKind::ConnectRequest {
            return self.request(event, now);
        }
        let found = self.ends.iter().position(|end| end.id.as_ref() == Some(&event.id));
        let Some(at) = found else { return Err(format!("{:?} for an unknown id", event.kind)) };
        let End { plan, phase, .. } = self.ends[at];
        match (event.kind, phase) {
            (CmEventKind::AddrResolved, Phase::Connecting(_)) => {
                self.check_device(&plan, &event.id)?;
                let resolved = event.id.resolve_route();
                self.unless_lost(at, resolved.map_err(|error| format!("resolve_route: {error}")))?;
            }
            (CmEventKind::RouteResolved, Phase::Connecting(_)) => {
                let connected = self.attach(&plan, &event.id).and_then(|()| {
                    let connected = event.id.connect(None, &plan.number.to_be_bytes());
                    connected.map_err(|error| format!("connect: {error}"))
                });
                self.unless_lost(at, connected)?;
            }
            (CmEventKind::Established, Phase::Connecting(_)) => {
                self.process(&plan).begin(plan.number);
                self.ends[at].phase = Phase::Established(now);
            }
            (CmEventKind::Disconnected, Phase::Established(_)) => {
                self.disconnect(at)?;
                self.ends[at].phase = Phase::PeerLeft(now);
            }
            (CmEventKind::Disconnected, Phase::Leaving(_)) => self.end_of_connection(at),
            (CmEventKind::TimewaitExit, _) => {}
            (CmEventKind::DeviceRemoval, _) if plan.may_be_lost => self.end(at),
            // An event of an identifier that has lost its device.
            (_, Phase::Ended) if plan.may_be_lost => {}
            (kind, Phase::Connecting(_)) => {
                if plan.must_work && !plan.is_rejected {
                    return Err(format!("end {}: {kind:?}, status {}", plan.number, event.status));
                }
                self.end(at);
            }
            (kind, phase) => return Err(format!("end {}: {kind:?} in {phase:?}", plan.number)),
        }
        Ok(())
    }

    fn request(&mut self, event: CmEvent, now: u64) -> Result<(), String> {
        let head = event.private_data.first_chunk().ok_or("a request without private data")?;
        let number = u64::from_be_bytes(*head) ^ 1;
        let found = self.ends.iter().position(|end| end.plan.number == number);
        let id = event.id.clone();
        drop(event);
        let Some(at) = found else {
            // A forged one: no process sends such a number.
            let _rejected = id.reject(b"no");
            id.destroy();
            return Ok(());
        };
        let plan = self.ends[at].plan;
        self.check_request(at, &id)?;
        if plan.is_rejected || self.ends[at].phase != Phase::Idle {
            // The peer may have given up meanwhile.
            let _rejected = id.reject(b"no");
            id.destroy();
            if self.ends[at].phase == Phase::Idle {
                self.end(at);
            }
            return Ok(());
        }
        if let Err(what) = self.attach(&plan, &id) {
            return self.unless_lost(at, Err(what));
        }
        self.ends[at].phase = Phase::Connecting(now);
        let accepted = id.accept(None, &[]);
        self.ends[at].id = Some(id);
        match accepted {
            Err(error) if plan.must_work => Err(format!("accept: {error}")),
            Err(_) => {
                self.end(at);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// A request to a host with several devices comes once, through the device that has its destination
    /// address.
    fn check_request(&self, at: usize, id: &Id) -> Result<(), String> {
        let End { plan, phase, .. } = &self.ends[at];
        if self.devices.is_some() && *phase != Phase::Idle && !plan.may_be_lost {
            return Err(format!("end {}: another request in {phase:?}", plan.number));
        }
        self.check_device(plan, id)
    }

    /// The identifier of an end is at the device of the plan, with an address of it.
    fn check_device(&self, plan: &EndPlan, id: &Id) -> Result<(), String> {
        let own = self.process(plan).channel.context().device();
        let is_at = id.context().is_some_and(|context| context.device() == own);
        let address = id.local_addr().map(|address| Gid::from(address.ip()));
        let has_address = address.is_some_and(|gid| own.gids().index_of(&gid).is_some());
        match is_at && has_address {
            true => Ok(()),
            false => Err(format!("end {}: {address:?} is at another device", plan.number)),
        }
    }

    /// Ends an attempt that failed because a netdev may be lost.
    fn unless_lost(&mut self, at: usize, result: Result<(), String>) -> Result<(), String> {
        if result.is_err() && self.ends[at].plan.may_be_lost {
            self.end(at);
            return Ok(());
        }
        result
    }

    /// Gives the queue pair of an end to an identifier, and posts its receives.
    fn attach(&self, plan: &EndPlan, id: &Id) -> Result<(), String> {
        let option = id.set_option(ACK_TIMEOUT.0, ACK_TIMEOUT.1, &[self.timeout]);
        option.map_err(|error| format!("set_option: {error}"))?;
        let (qp, receives) = self.process(plan).queue_pair(plan.number);
        id.attach_qp(&qp).map_err(|error| format!("create_qp: {error}"))?;
        for (wr_id, sge) in receives {
            let posted = qp.post_recv(&RecvWr { wr_id, sg_list: &[sge] });
            posted.map_err(|error| format!("post_recv: {error:?}"))?;
        }
        Ok(())
    }
}
