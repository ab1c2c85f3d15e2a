//! Draws a run from its seed: nodes, links, queue pairs, work, and the times of events.

use transport::{PathMtu, QpType, ReorderBuffer, VerbsError};
use wire::{Gid, Qpn};

use crate::Options;
use crate::fabric::{Links, Marking, Schedule};
use crate::fault::{Fault, Faults};
use crate::frame;
use crate::node::{App, Endpoint, Node};
use crate::plan::{self, Half};
use crate::queue_pair::{self, Attributes, QueuePair, Sizes};
use crate::reliable::Reliable;
use crate::rng::Rng;
use crate::unreliable::{self, Unreliable};

/// First queue pair number of every node.
pub(crate) const QPN_BASE: u32 = 0x100;
/// Smallest number of nodes of a fabric.
pub const NODES_MIN: usize = 2;
/// Largest number of nodes of a fabric.
pub const NODES_MAX: usize = 64;

/// Purposes of random numbers; each has its own stream.
const TOPOLOGY: u64 = 1;
const FAULTS: u64 = 2;
const LINKS: u64 = 3;
const SCHEDULE: u64 = 4;
const WORK: u64 = 5;
pub(crate) const PACE: u64 = 6;
pub(crate) const CHANCE: u64 = 7;
const CONGESTION: u64 = 8;
const EXTENDED: u64 = 9;
pub(crate) const FORGER: u64 = 10;

/// A drawn run.
pub(crate) struct Setup {
    pub(crate) faults: Faults,
    pub(crate) links: Links,
    pub(crate) schedule: Schedule,
    pub(crate) nodes: Vec<Node>,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Address and QPN of each queue pair.
    pub(crate) paths: Vec<(Gid, Qpn)>,
}

impl Setup {
    /// Draws the run.
    pub(crate) fn draw(options: &Options) -> Result<Self, VerbsError> {
        let seed = options.seed;
        let mut rng = Rng::stream(seed, TOPOLOGY);
        // Two nodes show most behaviour; a large fabric costs as much time as a hundred small ones.
        let drawn = match rng.between(0, 99) {
            0..=59 => 2,
            60..=89 => rng.between(3, 5),
            90..=97 => rng.between(6, 16),
            _ => rng.between(17, NODES_MAX as u64),
        } as usize;
        let count = options.nodes.map_or(drawn, |nodes| nodes.clamp(NODES_MIN, NODES_MAX));
        let mut fault_rng = Rng::stream(seed, FAULTS);
        let faults = match &options.faults {
            Some(list) => list.resolve(&mut fault_rng),
            None => Faults::swarm(&mut fault_rng),
        };
        let mut links = draw_links(count, &mut Rng::stream(seed, LINKS));
        draw_congestion(&mut links, &mut Rng::stream(seed, CONGESTION));
        let nodes = (0..count).map(|_| Node::new(draw_reorder(&mut rng), &mut rng)).collect();
        let mut setup = Self {
            faults,
            schedule: draw_schedule(count, &faults, &mut Rng::stream(seed, SCHEDULE)),
            links,
            nodes,
            endpoints: Vec::new(),
            paths: Vec::new(),
        };
        setup.draw_queue_pairs(&mut rng, &mut Rng::stream(seed, WORK))?;
        setup.draw_extended(&mut Rng::stream(seed, EXTENDED))?;
        Ok(setup)
    }

    fn draw_queue_pairs(&mut self, rng: &mut Rng, work: &mut Rng) -> Result<(), VerbsError> {
        let nodes = self.nodes.len() as u64;
        let reliable = rng.between(1, nodes + nodes / 2);
        for _ in 0..reliable {
            let ends = self.two_nodes(rng);
            self.add_reliable([QpType::Rc; 2], ends, reliable as usize, work)?;
        }
        if rng.chance(300) {
            for _ in 0..rng.between(1, 1 + nodes / 4) {
                let ends = self.two_nodes(rng);
                self.add_unreliable(ends, work)?;
            }
        }
        if rng.chance(300) {
            let others = rng.between(1, (nodes - 1).min(6));
            let first = rng.between(0, nodes - 1);
            self.add_datagrams((0..=others).map(|i| ((first + i) % nodes) as usize).collect(), work)?;
        }
        Ok(())
    }

    /// Draws XRC connections in one of five fabrics. Their own stream keeps the other draws unchanged.
    fn draw_extended(&mut self, rng: &mut Rng) -> Result<(), VerbsError> {
        if !rng.chance(200) {
            return Ok(());
        }
        let nodes = self.nodes.len();
        let count = rng.between(1, 1 + nodes as u64 / 2);
        for _ in 0..count {
            let ends = self.two_nodes(rng);
            self.add_reliable([QpType::XrcIni, QpType::XrcTgt], ends, nodes, rng)?;
        }
        Ok(())
    }

    fn two_nodes(&self, rng: &mut Rng) -> [usize; 2] {
        let nodes = self.nodes.len() as u64;
        let first = rng.between(0, nodes - 1);
        let second = (first + rng.between(1, nodes - 1)) % nodes;
        [first as usize, second as usize]
    }

    /// Returns the number that the next queue pair of a node gets if `before` others are created first.
    fn next_qpn(&self, node: usize, before: usize) -> Qpn {
        Qpn::new(QPN_BASE + (self.nodes[node].endpoints.len() + before) as u32)
    }

    /// Adds a reliable connection with 1/`share` of the usual work.
    fn add_reliable(
        &mut self,
        types: [QpType; 2],
        ends: [usize; 2],
        share: usize,
        rng: &mut Rng,
    ) -> Result<(), VerbsError> {
        let is_extended = types[0] != QpType::Rc;
        let mtu = rng.pick(&PathMtu::ALL);
        let bytes = rng.pick(&[4 << 10, 64 << 10, 512 << 10]) * (mtu.bytes() / 256).min(2);
        let ops: usize = rng.pick(&[1, 5, 20, 60]);
        let shape = plan::Shape {
            mtu: mtu.bytes(),
            max_sge: rng.between(1, 5) as usize,
            max_inline: rng.pick(&[0, 16, 64, 256]),
            // A fabric with many connections does not do more work than one with few.
            ops: (ops / share.div_ceil(4)).max(1),
            bytes: (bytes / share).max(4 << 10),
            fences: rng.pick(&[0, 0, 300]),
            is_extended,
        };
        let mut halves = [Half::default(), Half::default()];
        let [a, b] = &mut halves;
        plan::draw(a, b, &shape, 0x10_0000, rng);
        if !is_extended && rng.chance(700) {
            plan::draw(b, a, &shape, 0x20_0000, rng);
        }
        for half in &mut halves {
            half.local.extend_from_slice(&[0x5a; 32]);
            half.remote.extend_from_slice(&[0x5a; 32]);
            half.local_after = half.local.clone();
            half.remote_after = half.remote.clone();
        }
        let [a, b] = &mut halves;
        plan::apply(a, b);
        plan::apply(b, a);
        let psn = draw_psns(rng);
        let (rd_atomic, timeout) = (rng.pick(&[1, 2, 4, 16]), rng.between(10, 13) as u8);
        let (min_rnr_timer, depth) = (rng.between(1, 8) as u8, rng.pick(&[1, 4, 64]));
        let sizes = Sizes {
            depth,
            max_sge: shape.max_sge as u32,
            max_inline: shape.max_inline as u32,
            srq: false,
            equal_writes: false,
        };
        let flow_window = rng.pick(&[usize::MAX, usize::MAX, 1, 7, 64]);
        let paths = self.paths_of(ends);
        for (side, half) in halves.into_iter().enumerate() {
            let sizes =
                Sizes { srq: !is_extended && rng.chance(250), equal_writes: rng.chance(500), ..sizes };
            let attributes = Attributes {
                mtu,
                sq_psn: psn[side],
                rq_psn: psn[1 - side],
                rd_atomic,
                timeout,
                min_rnr_timer,
                peer: paths[1 - side],
            };
            let pd = self.endpoints.len() as u32 + 1;
            let memory = queue_pair::memory(pd, paths[side].1, &half.local, &half.remote, &half.keys);
            let queue = QueuePair::new(types[side], memory, sizes, &attributes)?;
            let app = App::Reliable(Box::new(Reliable::new(half)));
            self.add(ends[side], queue, app, psn[side], flow_window, Some(side));
        }
        Ok(())
    }

    fn add_unreliable(&mut self, ends: [usize; 2], rng: &mut Rng) -> Result<(), VerbsError> {
        let mtu = rng.pick(&PathMtu::ALL);
        let shape = unreliable::Shape::new(false, mtu, rng.between(1, 30) as usize);
        let mut remotes = [Vec::new(), Vec::new()];
        let [of_a, of_b] = &mut remotes;
        let first = self.endpoints.len();
        let apps =
            [Unreliable::draw(shape, &[first + 1], of_b, rng), Unreliable::draw(shape, &[first], of_a, rng)];
        let psn = draw_psns(rng);
        let paths = self.paths_of(ends);
        for (side, (mut app, mut remote)) in apps.into_iter().zip(remotes).enumerate() {
            remote.resize(remote.len() + 16, 0x5a);
            app.remote = remote;
            let attributes = Attributes {
                mtu,
                sq_psn: psn[side],
                rq_psn: psn[1 - side],
                rd_atomic: 0,
                timeout: 0,
                min_rnr_timer: 0,
                peer: paths[1 - side],
            };
            self.add_without_acks(ends[side], QpType::Uc, app, &attributes, Some(side), rng)?;
        }
        Ok(())
    }

    fn add_datagrams(&mut self, on: Vec<usize>, rng: &mut Rng) -> Result<(), VerbsError> {
        let first = self.endpoints.len();
        let all: Vec<usize> = (first..first + on.len()).collect();
        for (index, node) in on.into_iter().enumerate() {
            let others: Vec<usize> = all.iter().copied().filter(|other| *other != first + index).collect();
            let shape = unreliable::Shape::new(true, PathMtu::M4096, rng.between(1, 20) as usize);
            let app = Unreliable::draw(shape, &others, &mut Vec::new(), rng);
            let [sq_psn, _] = draw_psns(rng);
            let attributes = Attributes {
                mtu: PathMtu::M4096,
                sq_psn,
                rq_psn: 0,
                rd_atomic: 0,
                timeout: 0,
                min_rnr_timer: 0,
                peer: (Gid::ZERO, Qpn::new(0)),
            };
            self.add_without_acks(node, QpType::Ud, app, &attributes, None, rng)?;
        }
        Ok(())
    }

    fn add_without_acks(
        &mut self,
        node: usize,
        ty: QpType,
        app: Unreliable,
        attributes: &Attributes,
        side: Option<usize>,
        rng: &mut Rng,
    ) -> Result<(), VerbsError> {
        let (srq, depth) = (rng.chance(250), rng.pick(&[1, 4, 64]));
        let sizes = Sizes { depth, max_sge: 1, max_inline: 0, srq, equal_writes: false };
        let pd = self.endpoints.len() as u32 + 1;
        let memory = queue_pair::memory(pd, self.next_qpn(node, 0), &app.local, &app.remote, &[]);
        let queue = QueuePair::new(ty, memory, sizes, attributes)?;
        self.add(node, queue, App::Unreliable(Box::new(app)), attributes.sq_psn, usize::MAX, side);
        Ok(())
    }

    /// Returns address and QPN of two queue pairs that are created next.
    fn paths_of(&self, ends: [usize; 2]) -> [(Gid, Qpn); 2] {
        ends.map(|node| (frame::address(node, self.links.v6).into(), self.next_qpn(node, 0)))
    }

    /// Adds a queue pair. `side` is 0 or 1 of a connected pair; side 1 follows side 0.
    fn add(
        &mut self,
        node: usize,
        queue: QueuePair,
        app: App,
        sq_psn: u32,
        flow_window: usize,
        side: Option<usize>,
    ) {
        let index = self.endpoints.len();
        let peer = side.map(|side| if side == 0 { index + 1 } else { index - 1 });
        self.paths.push((frame::address(node, self.links.v6).into(), queue.qp.qpn()));
        self.nodes[node].endpoints.push(index);
        self.endpoints.push(Endpoint {
            node,
            peer,
            queue,
            app,
            sq_psn: wire::Psn::new(sq_psn),
            flow_window,
            next_post_ns: 0,
            rebinds: 0,
            touched: false,
        });
    }
}

/// Draws whether the node keeps packets after a gap. Hardware and rxe do not (go-back-N).
fn draw_reorder(rng: &mut Rng) -> ReorderBuffer {
    let is_go_back_n = rng.chance(250);
    if is_go_back_n { ReorderBuffer::none() } else { ReorderBuffer::new(PathMtu::M4096) }
}

/// Draws initial PSNs, half of them close to the wrap-around.
fn draw_psns(rng: &mut Rng) -> [u32; 2] {
    [0, 1].map(|_| {
        if rng.chance(500) { 0xff_ffff - rng.between(0, 300) as u32 } else { rng.next() as u32 & 0xff_ffff }
    })
}

fn draw_links(nodes: usize, rng: &mut Rng) -> Links {
    // 100, 40, 25 and 10 Gb/s.
    let rates = [80, 200, 320, 800];
    Links {
        v6: rng.chance(300),
        queue_bytes: rng.between(4 << 10, 64 << 10),
        bad_frames: 1,
        marking: None,
        ps_per_byte: (0..nodes).map(|_| rng.pick(&rates)).collect(),
        delay_ns: (0..nodes).map(|_| rng.between(100, 20_000)).collect(),
    }
}

/// Draws the length of bad states, and whether switches mark frames: in three of ten fabrics.
fn draw_congestion(links: &mut Links, rng: &mut Rng) {
    links.bad_frames = rng.pick(&[2, 8, 32, 128]);
    let (min_bytes, above) = (rng.between(0, 8 << 10), rng.between(1 << 10, 64 << 10));
    links.marking = rng.chance(300).then_some(Marking { min_bytes, max_bytes: min_bytes + above });
}

fn draw_schedule(nodes: usize, faults: &Faults, rng: &mut Rng) -> Schedule {
    let heal_ns = rng.pick(&[1_000_000, 10_000_000, 100_000_000, 1_000_000_000]);
    let partition = {
        // Neither side is empty. The partition ends before a requester could use up its retries.
        let side = (0..nodes).fold(1, |side, node| side | u64::from(node > 1 && rng.chance(500)) << node);
        let from_ns = rng.between(0, 2_000_000);
        let to_ns = (from_ns + rng.between(10_000, 8_000_000)).min(heal_ns);
        (side, [from_ns, to_ns])
    };
    let vanish = (rng.between(0, nodes as u64 - 1) as usize, rng.between(0, 3_000_000));
    Schedule {
        heal_ns,
        partition: faults.has(Fault::Partition).then_some(partition),
        vanish: faults.has(Fault::Vanish).then_some(vanish),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Optional features are present in some fabrics and absent in others.
    #[test]
    fn some_fabrics_have_xrc_and_some_mark_frames() {
        let has = |seed| {
            let setup = Setup::draw(&Options { seed, ..Options::default() }).unwrap();
            let is_target = |endpoint: &Endpoint| endpoint.queue.qp.ty() == QpType::XrcTgt;
            (setup.endpoints.iter().any(is_target), setup.links.marking.is_some())
        };
        let seen: Vec<_> = (0..300).map(has).collect();
        for (is_extended, marks) in [(false, false), (false, true), (true, false), (true, true)] {
            let count = seen.iter().filter(|has| **has == (is_extended, marks)).count();
            assert!(count > 5, "{count} fabrics with XRC {is_extended}, marking {marks}");
        }
    }
}
