//! The network: a switch with one port per node. Links have a rate and a delay; each port of the switch has a
//! queue. The network injects the faults. Every frame is counted: sent, delivered, lost for a cause, or in
//! flight.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use wire::Operation;

use crate::cause::Cause;
use crate::fault::{Fault, Faults};
use crate::frame;
use crate::rng::Rng;
use crate::sight::{Sight, What};
use crate::violation::{Checked, ensure};

/// Number of frames of a run, by what happened to them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Frames that nodes sent.
    pub sent: u64,
    /// Copies that the network made.
    pub duplicated: u64,
    /// Frames that a forger sent.
    pub forged: u64,
    /// Frames delivered to a queue pair.
    pub delivered: u64,
    /// Delivered frames with flipped bits in fields that no checksum covers.
    pub harmless: u64,
    /// Frames that were delayed so that later frames overtook them.
    pub reordered: u64,
    /// Times that a link stood still.
    pub delayed: u64,
    /// Frames marked with ECN CE by a switch.
    pub marked: u64,
    /// Lost frames by cause.
    pub lost: [u64; Cause::ALL.len()],
}

impl Tally {
    /// Returns the number of lost frames over all causes.
    #[must_use]
    pub fn lost_in_all(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Adds the numbers of another run.
    pub fn absorb(&mut self, other: &Self) {
        self.sent += other.sent;
        self.duplicated += other.duplicated;
        self.forged += other.forged;
        self.delivered += other.delivered;
        self.harmless += other.harmless;
        self.reordered += other.reordered;
        self.delayed += other.delayed;
        self.marked += other.marked;
        for (sum, lost) in self.lost.iter_mut().zip(other.lost) {
            *sum += lost;
        }
    }
}

/// A frame in flight or in a ring.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) to: usize,
    from: usize,
    pub(crate) is_forged: bool,
    /// Sequence number in sending order; copies by the network are counted too.
    number: u64,
    /// The cause of damage and the original bytes, if the network damaged the frame.
    pub(crate) damage: Option<(Cause, Vec<u8>)>,
    /// Additional delay on the last link, in nanoseconds.
    held_ns: u64,
}

/// Kinds of frames of which the k-th is lost.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Any,
    Request,
    Acknowledge,
    ReadResponse,
    Ends,
}

/// Events at fixed times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Time from which no fault happens any more, except for a vanished node.
    pub(crate) heal_ns: u64,
    /// Nodes of one side as a bit set, and the time range in which no frame crosses.
    pub(crate) partition: Option<(u64, [u64; 2])>,
    /// The node that vanishes, and the time.
    pub(crate) vanish: Option<(usize, u64)>,
}

/// Properties of the network.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    /// Time per byte of each node's link, in picoseconds.
    pub(crate) ps_per_byte: Vec<u64>,
    /// Delay from a node to the switch, and back.
    pub(crate) delay_ns: Vec<u64>,
    /// Queue of a switch port in bytes while `full-ring` is active; otherwise unlimited.
    pub(crate) queue_bytes: u64,
    /// Mean length of a link's bad state, in frames.
    pub(crate) bad_frames: u64,
    pub(crate) marking: Option<Marking>,
    pub(crate) v6: bool,
}

/// Marking of ECN-capable frames by the bytes queued in front of them at a switch port (section 5 of the
/// DCQCN paper): none up to `min_bytes`, all from `max_bytes` on, a linearly growing share in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marking {
    pub(crate) min_bytes: u64,
    pub(crate) max_bytes: u64,
}

impl Marking {
    /// Returns the share of frames to mark, in parts per million.
    fn share_ppm(self, queued_bytes: u64) -> u64 {
        let above = queued_bytes.saturating_sub(self.min_bytes);
        (above * 1_000_000 / (self.max_bytes - self.min_bytes)).min(1_000_000)
    }
}

/// The link of a node and its port of the switch.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    /// Time when the last bit of everything sent so far has left the node, and the switch.
    up_free_ns: u64,
    down_free_ns: u64,
    /// Time when the bad state of the link ends at the latest.
    bad_until_ns: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
enum Place {
    Switch,
    Node,
}

/// Bytes that a node may queue for its link before its queue pairs must wait.
const NODE_QUEUE_BYTES: u64 = 64 * 1024;
/// Share of frames that a link loses in the bad state, per mille.
const BAD_LOSS: u64 = 800;
/// Longest bad state, and longest standstill. The bad state is shorter than any ACK timeout, so that a link
/// that carries only retransmissions does not lose all of them.
const BAD_NS_MAX: u64 = 400_000;
const STILL_NS_MAX: u64 = 1_000_000;
/// Longest additional delay of a frame.
const HELD_NS_MAX: u64 = 200_000;

/// The network of a run.
pub(crate) struct Fabric<'w> {
    pub(crate) faults: Faults,
    pub(crate) schedule: Schedule,
    pub(crate) tally: Tally,
    /// Digest of all frames and their sending times.
    pub(crate) digest: u64,
    pub(crate) watch: Option<&'w mut dyn FnMut(&Sight<'_>)>,
    links: Links,
    rng: Rng,
    ports: Vec<Port>,
    kind: Kind,
    /// Number of frames of the chosen kind, by receiving node and queue pair.
    seen: BTreeMap<(usize, u32), u64>,
    heap: BinaryHeap<Reverse<(u64, u64, Place, usize)>>,
    frames: Vec<Option<Frame>>,
    free: Vec<usize>,
    spare: Vec<Vec<u8>>,
    order: u64,
    numbered: u64,
    in_flight: u64,
}

impl<'w> Fabric<'w> {
    pub(crate) fn new(
        links: Links,
        faults: Faults,
        schedule: Schedule,
        mut rng: Rng,
        watch: Option<&'w mut dyn FnMut(&Sight<'_>)>,
    ) -> Self {
        let kind = rng.pick(&[Kind::Any, Kind::Request, Kind::Acknowledge, Kind::ReadResponse, Kind::Ends]);
        Self {
            faults,
            schedule,
            tally: Tally::default(),
            digest: 0,
            watch,
            ports: vec![Port::default(); links.delay_ns.len()],
            links,
            rng,
            kind,
            seen: BTreeMap::new(),
            heap: BinaryHeap::new(),
            frames: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            order: 0,
            numbered: 0,
            in_flight: 0,
        }
    }

    pub(crate) fn v6(&self) -> bool {
        self.links.v6
    }

    /// Returns whether nodes send their frames as ECN-capable.
    pub(crate) fn is_ecn_capable(&self) -> bool {
        self.links.marking.is_some()
    }

    /// Returns whether faults still happen.
    pub(crate) fn is_faulty(&self, now: u64) -> bool {
        now < self.schedule.heal_ns
    }

    /// Returns the parameter of a fault, or 0 after the network was healed.
    fn number(&self, fault: Fault, now: u64) -> u64 {
        if self.is_faulty(now) { self.faults.number(fault) } else { 0 }
    }

    /// Draws whether a queue pair changes its UDP source port before the next frame.
    pub(crate) fn rebinds(&mut self, now: u64) -> bool {
        let ppm = if self.faults.has(Fault::Forge) { 0 } else { self.number(Fault::Rebind, now) };
        self.rng.chance_ppm(ppm)
    }

    pub(crate) fn has_vanished(&self, node: usize, now: u64) -> bool {
        self.schedule.vanish.is_some_and(|(gone, at)| gone == node && now >= at)
    }

    /// Returns the time when the node may continue to send, if its queue is full.
    pub(crate) fn blocked_until(&self, node: usize, now: u64) -> Option<u64> {
        let queued_ns = NODE_QUEUE_BYTES * self.links.ps_per_byte[node] / 1000;
        let until = self.ports[node].up_free_ns.saturating_sub(queued_ns / 2);
        (self.ports[node].up_free_ns > now + queued_ns).then_some(until)
    }

    /// Returns an empty buffer for a frame.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self, frame: Frame) {
        self.spare.push(frame.bytes);
        if let Some((_, bytes)) = frame.damage {
            self.spare.push(bytes);
        }
    }

    /// Takes a frame from a node.
    pub(crate) fn send(&mut self, now: u64, from: usize, to: usize, bytes: Vec<u8>) {
        self.tally.sent += 1;
        let icrc = bytes.last_chunk().map_or(0, |icrc| u32::from_le_bytes(*icrc));
        self.digest =
            (self.digest.rotate_left(5) ^ now ^ u64::from(icrc)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if self.rng.chance_ppm(self.number(Fault::Delay, now)) {
            self.tally.delayed += 1;
            let until = self.ports[from].up_free_ns.max(now) + self.rng.between(10_000, STILL_NS_MAX);
            self.ports[from].up_free_ns = until;
            self.report(now, from, What::StandsStill { until_ns: until });
        }
        let port = &mut self.ports[from];
        port.up_free_ns = port.up_free_ns.max(now) + serialisation_ns(&bytes, self.links.ps_per_byte[from]);
        let at = port.up_free_ns + self.links.delay_ns[from];
        let frame = Frame { bytes, to, from, is_forged: false, number: 0, damage: None, held_ns: 0 };
        if self.rng.chance_ppm(self.number(Fault::Duplicate, now)) {
            self.tally.duplicated += 1;
            let bytes = self.copy(&frame);
            self.depart(now, at, Frame { bytes, damage: None, ..frame }, false);
            self.depart(now, at, frame, true);
        } else {
            self.depart(now, at, frame, false);
        }
    }

    /// Takes a frame from a forger, with the address of `from`. It enters the network at the switch.
    pub(crate) fn forge(&mut self, now: u64, from: usize, to: usize, bytes: Vec<u8>) {
        self.tally.forged += 1;
        self.numbered += 1;
        let number = self.numbered;
        self.report(now, from, What::Sent { number, to, frame: &bytes, is_copy: false });
        let frame = Frame { bytes, to, from, is_forged: true, number, damage: None, held_ns: 0 };
        self.queue(now + 1, Place::Switch, frame);
    }

    /// Applies the faults to a frame that leaves a node. If it is not lost, it reaches the switch at `at`.
    fn depart(&mut self, now: u64, at: u64, mut frame: Frame, is_copy: bool) {
        self.numbered += 1;
        frame.number = self.numbered;
        let Frame { to, from, number, .. } = frame;
        self.report(now, from, What::Sent { number, to, frame: &frame.bytes, is_copy });
        if let Some(cause) = self.loss(now, &frame) {
            return self.lose(now, frame, cause);
        }
        if self.rng.chance_ppm(self.number(Fault::Corrupt, now)) {
            let whole = self.copy(&frame);
            for _ in 0..self.rng.between(1, 3) {
                let bit = self.rng.between(0, frame.bytes.len() as u64 * 8 - 1) as usize;
                frame.bytes[bit / 8] ^= 1 << (bit % 8);
            }
            // Flipping the same bit twice does no damage.
            if whole != frame.bytes {
                frame.damage = Some((Cause::Corrupt, whole));
            }
        } else if self.rng.chance_ppm(self.number(Fault::Truncate, now)) {
            let whole = self.copy(&frame);
            frame.bytes.truncate(self.rng.between(1, whole.len() as u64 - 1) as usize);
            frame.damage = Some((Cause::Truncate, whole));
        }
        if let Some((cause, _)) = frame.damage {
            self.report(now, from, What::Damaged { number, frame: &frame.bytes, cause });
        }
        if self.rng.chance_ppm(self.number(Fault::Reorder, now)) {
            self.tally.reordered += 1;
            frame.held_ns = self.rng.between(1, HELD_NS_MAX);
        }
        self.queue(at, Place::Switch, frame);
    }

    fn loss(&mut self, now: u64, frame: &Frame) -> Option<Cause> {
        if self.rng.chance_ppm(self.number(Fault::Drop, now)) {
            return Some(Cause::Drop);
        }
        if self.is_bad(now, frame.from) && self.rng.chance(BAD_LOSS) {
            return Some(Cause::Burst);
        }
        let kth = self.number(Fault::Kth, now);
        if kth > 0
            && let Some(packet) = frame::packet_of(&frame.bytes, self.links.v6)
        {
            let row = packet.row();
            let counts = match self.kind {
                Kind::Any => true,
                Kind::Request => !row.is_response(),
                Kind::Acknowledge => row.operation == Operation::Ack,
                Kind::ReadResponse => row.operation == Operation::ReadResponse,
                Kind::Ends => row.position.ends() && !row.is_response(),
            };
            if counts {
                let seen = self.seen.entry((frame.to, packet.bth.dest_qp.value())).or_default();
                *seen += 1;
                return (*seen == kth).then_some(Cause::Kth);
            }
        }
        None
    }

    /// Returns whether the link is in its bad state for this frame. This is the Gilbert-Elliott model with a
    /// step per frame.
    fn is_bad(&mut self, now: u64, node: usize) -> bool {
        let begins_ppm = self.number(Fault::Burst, now);
        if begins_ppm == 0 {
            return false;
        }
        let is_bad = if self.ports[node].bad_until_ns > now {
            !self.rng.next().is_multiple_of(self.links.bad_frames)
        } else {
            self.rng.chance_ppm(begins_ppm)
        };
        let port = &mut self.ports[node];
        port.bad_until_ns = match is_bad {
            true if port.bad_until_ns > now => port.bad_until_ns,
            true => now + BAD_NS_MAX,
            false => 0,
        };
        is_bad
    }

    fn copy(&mut self, frame: &Frame) -> Vec<u8> {
        let mut copy = self.buffer();
        copy.clone_from(&frame.bytes);
        copy
    }

    /// Counts a frame as lost.
    pub(crate) fn lose(&mut self, now: u64, frame: Frame, cause: Cause) {
        self.tally.lost[cause as usize] += 1;
        self.report(
            now,
            frame.to,
            What::Lost { number: frame.number, from: frame.from, frame: &frame.bytes, cause },
        );
        self.give_back(frame);
    }

    /// Returns the time of the next event in the network.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Returns the next frame that has reached its node by `now`.
    pub(crate) fn arrived(&mut self, now: u64) -> Option<Frame> {
        while self.next_ns()? <= now {
            let Reverse((at, _, place, slot)) = self.heap.pop()?;
            self.free.push(slot);
            self.in_flight -= 1;
            let frame = self.frames[slot].take()?;
            match place {
                Place::Switch => self.switch(at, frame),
                Place::Node if self.has_vanished(frame.to, at) => self.lose(at, frame, Cause::Vanish),
                Place::Node => return Some(frame),
            }
        }
        None
    }

    /// Moves a frame from one switch port to another. The bytes queued in front of it decide whether it is
    /// marked.
    fn switch(&mut self, at: u64, mut frame: Frame) {
        if let Some((side, [from_ns, to_ns])) = self.schedule.partition
            && (from_ns..to_ns).contains(&at)
            && (side >> frame.from ^ side >> frame.to) & 1 == 1
        {
            return self.lose(at, frame, Cause::Partition);
        }
        let ps_per_byte = self.links.ps_per_byte[frame.to];
        let queued_ns = self.ports[frame.to].down_free_ns.saturating_sub(at);
        let is_short = self.number(Fault::FullRing, at) > 0;
        if is_short && queued_ns * 1000 > self.links.queue_bytes * ps_per_byte {
            return self.lose(at, frame, Cause::FullQueue);
        }
        if let Some(marking) = self.links.marking
            && self.rng.chance_ppm(marking.share_ppm(queued_ns * 1000 / ps_per_byte))
        {
            self.tally.marked += u64::from(frame::mark(&mut frame.bytes));
        }
        let port = &mut self.ports[frame.to];
        port.down_free_ns = port.down_free_ns.max(at) + serialisation_ns(&frame.bytes, ps_per_byte);
        let arrives = port.down_free_ns + self.links.delay_ns[frame.to] + frame.held_ns;
        self.queue(arrives, Place::Node, frame);
    }

    fn queue(&mut self, at: u64, place: Place, frame: Frame) {
        let slot = self.free.pop().unwrap_or(self.frames.len());
        if slot == self.frames.len() {
            self.frames.push(None);
        }
        self.frames[slot] = Some(frame);
        self.order += 1;
        self.in_flight += 1;
        self.heap.push(Reverse((at, self.order, place, slot)));
    }

    /// Checks that sent frames equal delivered, lost and present ones. `in_rings` frames have arrived but
    /// were not handled yet.
    pub(crate) fn check_conservation(&self, in_rings: u64) -> Checked {
        let Tally { sent, duplicated, forged, delivered, .. } = self.tally;
        let lost = self.tally.lost_in_all();
        let in_flight = self.in_flight + in_rings;
        ensure!(
            sent + duplicated + forged == delivered + lost + in_flight,
            Frames,
            "{sent} frames sent, {duplicated} duplicated and {forged} forged, but {delivered} delivered, \
             {lost} lost and {in_flight} in flight"
        );
        Ok(())
    }

    /// Reports an event to the observer, if there is one.
    pub(crate) fn report(&mut self, at_ns: u64, node: usize, what: What<'_>) {
        if let Some(watch) = &mut self.watch {
            watch(&Sight { at_ns, node, what });
        }
    }
}

/// Returns the time on the link. Preamble, FCS and inter-frame gap count as well (IEEE 802.3).
fn serialisation_ns(bytes: &[u8], ps_per_byte: u64) -> u64 {
    (bytes.len() as u64 + 24).max(84) * ps_per_byte / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, run};

    /// With `burst`, losses of a link are clustered: after a lost frame the next one is lost far more often
    /// than average.
    #[test]
    fn losses_of_a_bad_link_come_in_bursts() {
        let options =
            |seed| Options { seed, nodes: Some(2), faults: Some("burst=0.5%".parse().expect("a fault")) };
        let (mut frames, mut lost, mut behind, mut both) = (0_u64, 0_u64, 0_u64, 0_u64);
        for seed in 0..150 {
            let mut fates: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
            let mut note = |sight: &Sight<'_>| match sight.what {
                What::Sent { number, .. } => drop(fates.insert(number, (sight.node, false))),
                What::Lost { number, from, cause: Cause::Burst, .. } => {
                    fates.insert(number, (from, true));
                }
                _ => {}
            };
            run(&options(seed), Some(&mut note)).expect("no violation");
            let mut last = [false; 2];
            for (node, is_lost) in fates.into_values() {
                frames += 1;
                lost += u64::from(is_lost);
                behind += u64::from(last[node]);
                both += u64::from(last[node] && is_lost);
                last[node] = is_lost;
            }
        }
        assert!(lost > 100, "{lost} of {frames} frames are lost");
        let (share, share_after_loss) = (lost * 1000 / frames, both * 1000 / behind);
        assert!(
            share < 150 && share_after_loss > 300,
            "{share} per mille of all frames are lost, {share_after_loss} per mille after a lost frame"
        );
    }

    #[test]
    fn the_share_that_is_marked_grows_with_the_queue() {
        let marking = Marking { min_bytes: 1000, max_bytes: 3000 };
        let shares = [0, 1000, 1001, 2000, 2999, 3000, u64::MAX / 2_000_000].map(|at| marking.share_ppm(at));
        assert_eq!(shares, [0, 0, 500, 500_000, 999_500, 1_000_000, 1_000_000]);
    }
}
