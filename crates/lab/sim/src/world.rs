//! A run: schedules nodes and applications, and makes the checks that need more than one side.

use transport::{AsyncEventKind, Instant, MAX_PACKET, QpCounters, QpEvent, Wc};
use wire::{Opcode, Operation};

use crate::cause::Cause;
use crate::fabric::{Fabric, Frame};
use crate::fault::Fault;
use crate::forger::{self, Forger};
use crate::node::{App, Endpoint, Node};
use crate::plan::Kind;
use crate::reliable::Peer;
use crate::rng::Rng;
use crate::setup::{CHANCE, FORGER, PACE, QPN_BASE, Setup};
use crate::sight::{Sight, What};
use crate::violation::{Broken, Checked, Violation, ensure};
use crate::{Failed, Options, Outcome, frame};

/// UDP source ports of queue pairs; the forger has others.
const PORTS: u16 = 0x2000;
/// Virtual time within which everything ends after the network is healed.
const END_NS: u64 = 30_000_000_000;
/// Maximum number of packets that a queue pair sends per poll.
const TX_QUOTA: usize = 64;
/// Maximum number of request packets in flight: a window (see `requester.rs`). While READs are requested
/// again, this includes the packets in flight after a loss, up to the number that a selective-repeat
/// requester tracks.
const WINDOW_MAX: usize = 512;
/// Longest pause between two posts of an application, and between late receives.
const PAUSE_NS_MAX: u64 = 100_000;
const LATE_NS_MAX: u64 = 3_000_000;
/// Longest time that a node is without buffers.
const EMPTY_NS_MAX: u64 = 300_000;
/// Rate at which that begins, per million frames.
const EMPTY_PPM: u64 = 5_000;

pub(crate) fn run(
    options: &Options,
    watch: Option<&mut dyn FnMut(&Sight<'_>)>,
) -> Result<Outcome, Box<Failed>> {
    let setup = Setup::draw(options).expect("drawn sizes are within the limits of a queue pair");
    let (faults, nodes) = (setup.faults, setup.nodes.len());
    let mut world = World::new(setup, options.seed, watch);
    world.run().map_err(|Broken { rule, what }| {
        let violation = Violation { rule, at_ns: world.now, what };
        Box::new(Failed { seed: options.seed, nodes, faults, violation })
    })
}

struct World<'w> {
    now: u64,
    nodes: Vec<Node>,
    endpoints: Vec<Endpoint>,
    paths: Vec<(wire::Gid, wire::Qpn)>,
    fabric: Fabric<'w>,
    forger: Option<Forger>,
    rng: Rng,
    is_healed: bool,
    has_vanished: bool,
    polls: u64,
}

impl<'w> World<'w> {
    fn new(setup: Setup, seed: u64, watch: Option<&'w mut dyn FnMut(&Sight<'_>)>) -> Self {
        let Setup { faults, links, schedule, nodes, endpoints, paths } = setup;
        let forger = || Forger::new(Rng::stream(seed, FORGER), schedule.heal_ns);
        let forger = faults.has(Fault::Forge).then(forger);
        let fabric = Fabric::new(links, faults, schedule, Rng::stream(seed, CHANCE), watch);
        let rng = Rng::stream(seed, PACE);
        Self {
            now: 0,
            nodes,
            endpoints,
            paths,
            fabric,
            forger,
            rng,
            is_healed: false,
            has_vanished: false,
            polls: 0,
        }
    }

    /// Runs to the end and makes all checks.
    fn run(&mut self) -> Checked<Outcome> {
        if let Some((side, _)) = self.fabric.schedule.partition {
            self.fabric.report(0, 0, What::Parted(side));
        }
        while !self.is_done() {
            self.step()?;
        }
        // Frames that are still in flight must do no harm either.
        while self.fabric.next_ns().is_some() || self.nodes.iter().any(|node| !node.ring.is_empty()) {
            self.step()?;
        }
        self.fabric.check_conservation(0)?;
        self.check_end()?;
        let mut counters = QpCounters::default();
        for endpoint in &self.endpoints {
            counters.absorb(endpoint.queue.qp.counters());
        }
        Ok(Outcome {
            nodes: self.nodes.len(),
            faults: self.fabric.faults,
            tally: self.fabric.tally,
            counters,
            bytes: self.endpoints.iter().map(|endpoint| endpoint.app.bytes()).sum(),
            elapsed_ns: self.now,
            broken: counters.retry_exceeded_err,
            digest: self.fabric.digest,
        })
    }

    /// Executes the next event.
    fn step(&mut self) -> Checked {
        let wake = self.nodes.iter().map(|node| node.wake_ns).min().filter(|at| *at != u64::MAX);
        let next = self.fabric.next_ns().into_iter().chain(wake).min();
        let forged = self.forger.as_ref().map(Forger::next_ns).filter(|at| self.fabric.is_faulty(*at));
        if let Some(at) = forged.filter(|at| next.is_some_and(|next| *at <= next)) {
            self.now = self.now.max(at);
            self.forge();
            return Ok(());
        }
        let Some(next) = next else {
            ensure!(false, Progress, "no event is pending, but not everything has ended: {}", self.state());
            return Ok(());
        };
        self.now = self.now.max(next);
        let healed_ns = self.fabric.schedule.heal_ns;
        ensure!(
            self.now < healed_ns + END_NS,
            Progress,
            "not everything has ended {} s after the network was healed: {}",
            END_NS / 1_000_000_000,
            self.state()
        );
        if !self.is_healed && self.now >= healed_ns {
            self.is_healed = true;
            self.fabric.report(healed_ns, 0, What::Healed);
        }
        if let Some((gone, at)) = self.fabric.schedule.vanish
            && self.now >= at
            && !self.has_vanished
        {
            self.has_vanished = true;
            self.vanish(gone);
        }
        while let Some(frame) = self.fabric.arrived(self.now) {
            self.arrive(frame);
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].wake_ns <= self.now {
                self.poll(index)?;
            }
        }
        Ok(())
    }

    /// The forger sends a frame in the name of the peer of some queue pair.
    fn forge(&mut self) {
        let Some(forger) = &mut self.forger else { return };
        let Endpoint { node, peer, queue, .. } = &self.endpoints[forger.choose(self.endpoints.len())];
        let (to, Some(peer)) = (*node, *peer) else { return };
        let Some(forgery) = forger.forge(&queue.qp) else { return };
        let from = self.endpoints[peer].node;
        let (v6, ecn) = (self.fabric.v6(), self.fabric.is_ecn_capable());
        let mut bytes = self.fabric.buffer();
        let head = frame::Head { from, to, v6, ip_id: 0, port: forgery.port, ecn };
        frame::emit(&mut bytes, head, &forgery.packet);
        self.fabric.forge(self.now, from, to, bytes);
    }

    fn vanish(&mut self, gone: usize) {
        self.fabric.report(self.now, gone, What::Vanished);
        let node = &mut self.nodes[gone];
        node.wake_ns = u64::MAX;
        for frame in std::mem::take(&mut node.ring) {
            self.fabric.lose(self.now, frame, Cause::Vanish);
        }
    }

    /// Puts a frame that reached its node into the ring, if there is room and a buffer.
    fn arrive(&mut self, frame: Frame) {
        let (now, fabric) = (self.now, &mut self.fabric);
        let node = &mut self.nodes[frame.to];
        let has = |fault| fabric.faults.has(fault) && fabric.is_faulty(now);
        if has(Fault::EmptyPool) && now >= node.empty_until_ns && self.rng.chance_ppm(EMPTY_PPM) {
            node.empty_until_ns = now + self.rng.between(1_000, EMPTY_NS_MAX);
        }
        if now < node.empty_until_ns {
            return fabric.lose(now, frame, Cause::EmptyPool);
        }
        if has(Fault::FullRing) && node.ring.len() >= node.ring_max {
            return fabric.lose(now, frame, Cause::FullRing);
        }
        node.ring.push_back(frame);
        node.wake_ns = node.wake_ns.min(now + node.poll_ns);
    }

    /// One poll of a device: receive, timers, applications, transmit, completions.
    fn poll(&mut self, index: usize) -> Checked {
        self.polls += 1;
        if self.polls.is_multiple_of(64) {
            self.fabric.check_conservation(self.nodes.iter().map(|node| node.ring.len() as u64).sum())?;
        }
        self.nodes[index].wake_ns = u64::MAX;
        self.receive(index)?;
        let own = std::mem::take(&mut self.nodes[index].endpoints);
        let result = self.serve(index, &own);
        self.nodes[index].endpoints = own;
        result
    }

    fn serve(&mut self, index: usize, own: &[usize]) -> Checked {
        let now = Instant(self.now);
        for &at in own {
            let endpoint = &mut self.endpoints[at];
            if std::mem::take(&mut endpoint.touched) {
                // The progress thread receives every eighth batch, the application thread the others.
                endpoint.queue.qp.end_of_batch(now, !self.polls.is_multiple_of(8));
            }
            let qp = &mut endpoint.queue.qp;
            if qp.poll_timeout().is_some_and(|due| due <= now) {
                qp.handle_timeout(now);
                let due = qp.poll_timeout();
                ensure!(due.is_none_or(|due| due > now), State, "a handled timeout has expired again");
            }
            self.application(at)?;
        }
        let rotation = self.nodes[index].first;
        self.nodes[index].first = rotation + 1;
        let mut wake = u64::MAX;
        for &at in own.iter().cycle().skip(rotation % own.len().max(1)).take(own.len()) {
            self.transmit(at)?;
            self.events(at)?;
            let endpoint = &self.endpoints[at];
            let timeout = endpoint.queue.qp.poll_timeout().map_or(u64::MAX, |at| at.0);
            let post = if endpoint.app.has_work() { endpoint.next_post_ns } else { u64::MAX };
            wake = wake.min(timeout).min(post);
        }
        // If the port has room, packets that the quota left over are sent in the next poll.
        let has_more = own.iter().any(|&at| {
            let Endpoint { queue, flow_window, .. } = &self.endpoints[at];
            queue.qp.wants_transmit() && queue.qp.packets_in_flight() < *flow_window
        });
        if has_more {
            wake = wake.min(self.fabric.blocked_until(index, self.now).unwrap_or(self.now + 100));
        }
        let node = &mut self.nodes[index];
        if !node.ring.is_empty() {
            wake = wake.min(self.now + node.poll_ns);
        }
        node.wake_ns = node.wake_ns.min(wake.max(self.now + 1));
        Ok(())
    }

    /// Handles the frames of one batch.
    fn receive(&mut self, index: usize) -> Checked {
        for _ in 0..self.nodes[index].batch {
            let Some(frame) = self.nodes[index].ring.pop_front() else { break };
            self.deliver(index, frame)?;
        }
        Ok(())
    }

    /// Checks a frame and delivers its packet to the destination queue pair.
    fn deliver(&mut self, index: usize, frame: Frame) -> Checked {
        let (from, packet) = match (frame::open(&frame.bytes, index, self.fabric.v6()), &frame.damage) {
            (Ok(opened), _) => opened,
            (Err(_), Some((cause, _))) => {
                let cause = *cause;
                self.fabric.lose(self.now, frame, cause);
                return Ok(());
            }
            (Err(reason), None) => {
                ensure!(false, Integrity, "an intact frame is dropped as {reason}");
                return Ok(());
            }
        };
        if let Some((cause, whole)) = &frame.damage {
            let before = frame::packet_of(whole, self.fabric.v6());
            // No checksum covers bits that routers may change.
            let is_harmless = before.is_some_and(|before| before.bytes()[5..] == packet.bytes()[5..])
                && packet.bytes().len() == whole.len() - (frame.bytes.len() - packet.bytes().len());
            ensure!(is_harmless, Integrity, "damage ({}) was not detected: {packet}", cause.name());
            self.fabric.tally.harmless += 1;
        }
        let number = packet.bth.dest_qp.value().wrapping_sub(QPN_BASE) as usize;
        let Some(&at) = self.nodes[index].endpoints.get(number) else {
            ensure!(frame.is_forged, Integrity, "there is no queue pair for {packet}");
            self.fabric.lose(self.now, frame, Cause::NoQueuePair);
            return Ok(());
        };
        if frame.is_forged && forger::is_lucky(&self.endpoints[at].queue.qp, &packet) {
            self.fabric.lose(self.now, frame, Cause::Lucky);
            return Ok(());
        }
        self.fabric.tally.delivered += 1;
        if !frame.is_forged {
            self.offer(at, frame::node_of(&from.src), &packet);
        }
        let endpoint = &mut self.endpoints[at];
        let queue = &mut endpoint.queue;
        let result = queue.qp.handle_packet(
            Instant(self.now),
            &packet,
            &from,
            &queue.memory,
            &mut queue.srqs,
            &mut self.nodes[index].reorder,
        );
        endpoint.touched = true;
        // The queue pair may drop a packet; whether that was right shows at the end.
        self.fabric.report(self.now, index, What::Delivered { packet, refused: result.err() });
        self.fabric.give_back(frame);
        Ok(())
    }

    /// Notes that the last packet of an unacknowledged message reached its queue pair.
    fn offer(&mut self, at: usize, from: usize, packet: &wire::Packet<'_>) {
        let endpoint = &self.endpoints[at];
        let App::Unreliable(_) = &endpoint.app else { return };
        if !packet.row().position.ends() || packet.row().operation == Operation::Cnp {
            return;
        }
        let sender = packet.deth().map_or(endpoint.peer, |deth| self.endpoint_of(from, deth.src_qp.value()));
        let Some(sender) = sender else { return };
        let App::Unreliable(app) = &self.endpoints[sender].app else { return };
        let number = app.message_at(packet.bth.psn, self.endpoints[sender].sq_psn);
        if let (App::Unreliable(app), Some(number)) = (&mut self.endpoints[at].app, number) {
            app.offer(sender, number);
        }
    }

    fn endpoint_of(&self, node: usize, qpn: u32) -> Option<usize> {
        let number = qpn.checked_sub(QPN_BASE)? as usize;
        self.nodes.get(node)?.endpoints.get(number).copied()
    }

    fn application(&mut self, at: usize) -> Checked {
        let endpoint = &mut self.endpoints[at];
        if !endpoint.app.has_work() || endpoint.next_post_ns > self.now {
            return Ok(());
        }
        let eager = self.nodes[endpoint.node].eager;
        let rng = &mut self.rng;
        let (posts, mut recvs) = if eager { (64, 64) } else { (rng.between(0, 4), rng.between(0, 4)) };
        let mut pause = rng.between(100, PAUSE_NS_MAX);
        if self.fabric.faults.has(Fault::Rnr) && self.fabric.is_faulty(self.now) && rng.chance(700) {
            recvs = 0;
            pause = rng.between(100, LATE_NS_MAX);
        }
        match &mut endpoint.app {
            App::Reliable(app) => app.post(self.now, &mut endpoint.queue, posts, recvs, rng)?,
            App::Unreliable(app) => app.post(&mut endpoint.queue, posts, recvs, &self.paths)?,
        }
        endpoint.next_post_ns = self.now + pause;
        Ok(())
    }

    /// Sends the packets that may be sent now.
    fn transmit(&mut self, at: usize) -> Checked {
        let mut buf = [0; MAX_PACKET];
        let endpoint = &mut self.endpoints[at];
        let node = endpoint.node;
        let qp = &mut endpoint.queue.qp;
        let mut quantum = qp
            .transmit_quantum(Instant(self.now), endpoint.flow_window.saturating_sub(qp.packets_in_flight()));
        for _ in 0..TX_QUOTA {
            if self.fabric.blocked_until(node, self.now).is_some() {
                break;
            }
            let wanted = quantum.qp().wants_transmit();
            let sent = quantum.poll(&endpoint.queue.memory, &mut buf);
            let qp = quantum.qp();
            let Some(sent) = sent else { break };
            ensure!(wanted, State, "a queue pair sends although it reported nothing to send");
            ensure!(
                sent.len.is_multiple_of(4),
                State,
                "the packet length of {} bytes is no multiple of 4",
                sent.len
            );
            ensure!(
                qp.packets_in_flight() <= WINDOW_MAX,
                State,
                "{} packets in flight",
                qp.packets_in_flight()
            );
            // A congestion notification packet has its own traffic class.
            ensure!(
                sent.is_datagram == (qp.ty().is_datagram() || buf[0] == Opcode::CNP.0),
                State,
                "is_datagram is set on a packet of a connected queue pair, or missing"
            );
            let dgid = if sent.is_datagram { qp.datagram_dest().av.dgid } else { qp.av().dgid };
            let ip_id = &mut self.nodes[node].ip_id;
            *ip_id = ip_id.wrapping_add(1);
            let (v6, to) = (self.fabric.v6(), frame::node_of(&dgid));
            let mut bytes = self.fabric.buffer();
            if self.fabric.rebinds(self.now) {
                endpoint.rebinds = endpoint.rebinds.wrapping_add(1);
            }
            let port = frame::SRC_PORT + (at as u16).wrapping_add(endpoint.rebinds.wrapping_mul(64)) % PORTS;
            let (ip_id, ecn) = (*ip_id, self.fabric.is_ecn_capable());
            let head = frame::Head { from: node, to, v6, ip_id, port, ecn };
            frame::emit(&mut bytes, head, &buf[..sent.len]);
            self.fabric.send(self.now, node, to, bytes);
        }
        Ok(())
    }

    fn events(&mut self, at: usize) -> Checked {
        loop {
            let qp = &mut self.endpoints[at].queue.qp;
            let (has_event, event) = (qp.has_event(), qp.poll_event());
            ensure!(
                has_event == event.is_some(),
                State,
                "has_event() returned {has_event}, but poll_event() disagrees"
            );
            let Some(event) = event else { break };
            let node = self.endpoints[at].node;
            match event {
                QpEvent::SendWc(wc) => {
                    self.fabric.report(self.now, node, What::Completed { wc, is_receive: false });
                    let peer = self.peer_of(at);
                    let Endpoint { app, queue, .. } = &mut self.endpoints[at];
                    match app {
                        App::Reliable(app) => app.on_send_wc(self.now, &wc, queue, peer, &mut self.rng)?,
                        App::Unreliable(app) => app.on_send_wc(&wc)?,
                    }
                }
                QpEvent::RecvWc { wc, solicited, srqn } => {
                    self.fabric.report(self.now, node, What::Completed { wc, is_receive: true });
                    self.on_recv_wc(at, &wc, solicited, srqn)?;
                }
                QpEvent::Async(kind) => {
                    let Endpoint { app, queue, .. } = &self.endpoints[at];
                    let qpn = queue.qp.qpn().value();
                    self.fabric.report(self.now, node, What::Event { qpn, kind });
                    let is_expected = kind == AsyncEventKind::QpLastWqeReached
                        && matches!(app, App::Reliable(app) if app.expects_last_wqe(queue));
                    ensure!(is_expected, State, "QP {qpn:#x} raises {kind:?}");
                }
                QpEvent::XrcLimitReached(srqn) => {
                    ensure!(false, State, "shared receive queue {srqn:#x} reached a limit that was not set");
                }
            }
            let endpoint = &mut self.endpoints[at];
            endpoint.next_post_ns = endpoint.next_post_ns.min(self.now + 50);
        }
        self.give_back(at);
        Ok(())
    }

    fn on_recv_wc(&mut self, at: usize, wc: &Wc, solicited: bool, srqn: Option<u32>) -> Checked {
        let Endpoint { app, queue, peer, .. } = &mut self.endpoints[at];
        let app = match app {
            App::Reliable(app) => return app.on_recv_wc(wc, solicited, srqn, queue),
            App::Unreliable(app) => app,
        };
        let arrived = app.on_recv_wc(wc, queue)?;
        let sender = match *peer {
            Some(peer) => Some(peer),
            None => {
                let local = queue.memory.local.borrow();
                // The GRH area in front of the bytes contains an IP header with the sender's address (Annex
                // A17.4.5.2).
                let (_, start, _) = arrived;
                let address = if self.fabric.v6() { start - 18..start - 16 } else { start - 6..start - 4 };
                let number = u16::from_be_bytes([local[address.start], local[address.start + 1]]);
                let node = usize::from(number).wrapping_sub(1);
                drop(local);
                self.endpoint_of(node, wc.src_qp)
            }
        };
        let Some(sender) = sender.filter(|sender| *sender != at) else {
            ensure!(false, Completion, "a datagram without a sender: {wc:?}");
            return Ok(());
        };
        let faults = &self.fabric.faults;
        let is_in_order = !faults.has(Fault::Reorder) && !faults.has(Fault::Duplicate);
        let Ok([receiver, sender_end]) = self.endpoints.get_disjoint_mut([at, sender]) else { return Ok(()) };
        if let (App::Unreliable(app), App::Unreliable(from)) = (&mut receiver.app, &sender_end.app) {
            app.check_delivery((sender, from, is_in_order), arrived, wc, &receiver.queue, at)?;
        }
        Ok(())
    }

    /// Returns the state of the node at a connection's far end.
    fn peer_of(&self, at: usize) -> Peer {
        let node = self.endpoints[at].peer.map(|peer| self.endpoints[peer].node);
        let vanish = self.fabric.schedule.vanish;
        let vanished_ns =
            vanish.filter(|(gone, at)| Some(*gone) == node && self.now >= *at).map(|(_, at)| at);
        Peer { vanished_ns, is_exact: self.fabric.faults.only(&[Fault::Vanish, Fault::Rnr]) }
    }

    /// Gives the target of complete WRITEs back to the peer's application. It may change it; a late
    /// retransmission must not undo that.
    fn give_back(&mut self, at: usize) {
        let Some(peer) = self.endpoints[at].peer else { return };
        let Ok([this, that]) = self.endpoints.get_disjoint_mut([at, peer]) else { return };
        let (App::Reliable(this), App::Reliable(that_app)) = (&mut this.app, &mut that.app) else { return };
        for done in &this.half.ops[this.returned..this.completed] {
            if let Kind::Write { to } = done.kind
                && !done.read_later
                && done.len > 0
            {
                let mut remote = that.queue.memory.remote.borrow_mut();
                remote[to] ^= 0xff;
                that_app.half.remote_after[to] = remote[to];
                that_app.half.remote[to] = remote[to];
            }
        }
        this.returned = this.completed;
    }

    fn is_alive(&self, at: usize) -> bool {
        !self.fabric.has_vanished(self.endpoints[at].node, self.now)
    }

    fn is_done(&self) -> bool {
        self.endpoints.iter().enumerate().all(|(at, endpoint)| match &endpoint.app {
            _ if !self.is_alive(at) => true,
            App::Reliable(app) => app.is_done(self.peer_of(at)),
            App::Unreliable(app) => app.is_done(),
        })
    }

    fn check_end(&self) -> Checked {
        let is_calm = self.fabric.faults.only(&[]);
        for (at, endpoint) in self.endpoints.iter().enumerate().filter(|(at, _)| self.is_alive(*at)) {
            let of = |broken: Broken| Broken { what: format!("queue pair {at}: {}", broken.what), ..broken };
            match &endpoint.app {
                App::Reliable(app) => app.check_memory(&endpoint.queue, self.peer_of(at)).map_err(of)?,
                App::Unreliable(app) => {
                    let senders: Vec<_> =
                        endpoint.peer.into_iter().filter_map(|peer| self.sender(peer, at)).collect();
                    app.check_memory(&endpoint.queue, &senders).map_err(of)?;
                    if endpoint.peer.is_none() {
                        app.check_datagrams(&endpoint.queue).map_err(of)?;
                    }
                }
            }
        }
        let counters = |f: fn(&QpCounters) -> u64| -> u64 {
            self.endpoints.iter().map(|endpoint| f(endpoint.queue.qp.counters())).sum()
        };
        let (sent, counted) = (self.fabric.tally.sent, counters(|counters| counters.sent_pkts));
        ensure!(sent == counted, Frames, "{sent} frames were sent, but the counters say {counted}");
        let (delivered, counted) = (self.fabric.tally.delivered, counters(|counters| counters.rcvd_pkts));
        ensure!(
            counted <= delivered,
            Frames,
            "{delivered} frames were delivered, but the counters say {counted}"
        );
        let (lost, gaps) = (self.fabric.tally.lost_in_all(), counters(|counters| counters.rcvd_seq_err));
        ensure!(!is_calm || lost == 0, Frames, "{lost} frames are lost in a network without faults");
        ensure!(!is_calm || gaps == 0, State, "{gaps} sequence errors in a network without faults");
        Ok(())
    }

    fn sender(&self, peer: usize, at: usize) -> Option<(&crate::unreliable::Unreliable, usize)> {
        match &self.endpoints[peer].app {
            App::Unreliable(app) => Some((app, at)),
            App::Reliable(_) => None,
        }
    }

    /// Returns the progress of everything that has not ended, as text.
    fn state(&self) -> String {
        let mut text = String::new();
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            let is_done = match &endpoint.app {
                _ if !self.is_alive(at) => true,
                App::Reliable(app) => app.is_done(self.peer_of(at)),
                App::Unreliable(app) => app.is_done(),
            };
            if !is_done {
                let (node, qp) = (endpoint.node, &endpoint.queue.qp);
                text +=
                    &format!("\n  queue pair {at} ({:?} {:#x}) of node {node}: ", qp.ty(), qp.qpn().value());
                text += &format!(
                    "{}, {:?}, {} packets in flight",
                    endpoint.app.state(),
                    qp.state(),
                    qp.packets_in_flight()
                );
            }
        }
        text
    }
}
