//! The queue pairs with packets to send: the ready list, the flow windows with the queue pairs that they
//! block, and back-pressure of the port.
//!
//! Invariants: a queue pair with packets to send is on the ready list, or blocked by the window of its flow.
//! While the window of a flow has room and blocks queue pairs, another queue pair of the flow is on the ready
//! list, or has packets in flight. An ACK lists the queue pair that has been blocked for longest. The next
//! one is listed when that one leaves room ([`TransmitQueue::pass_on_after`]). If an ACK listed all of them,
//! hundreds would be visited for each that sends.

use std::collections::VecDeque;

use crate::port::{FlowId, SOCKET_WINDOW_BYTES};
use crate::qp_numbers::QpIndex;

/// A queue pair's part of the window of a flow. The queue pair's entry owns it; only [`TransmitQueue`]
/// changes it.
#[derive(Debug, Default)]
pub(crate) struct FlowShare {
    flow: Option<FlowId>,
    in_flight_pkts: usize,
}

impl FlowShare {
    /// The flow that the queue pair sends to; `None` before it has an address vector, and for datagrams.
    #[inline]
    pub(crate) fn flow(&self) -> Option<FlowId> {
        self.flow
    }
}

/// The window towards one destination process, and the queue pairs that it blocks.
#[derive(Debug)]
struct Flow {
    in_flight_pkts: usize,
    window_bytes: usize,
    blocked: VecDeque<QpIndex>,
    /// A round, and how many queue pairs have left space in it and are blocked all the same.
    tried: (u64, usize),
}

impl Default for Flow {
    fn default() -> Self {
        Self { in_flight_pkts: 0, window_bytes: SOCKET_WINDOW_BYTES, blocked: VecDeque::new(), tried: (0, 0) }
    }
}

/// See the module documentation. Queue pairs are known by their index.
#[derive(Debug, Default)]
pub(crate) struct TransmitQueue {
    ready: VecDeque<QpIndex>,
    /// Queue pairs with messages that are held for a larger batch; they return to `ready` at the end of the
    /// round.
    held: Vec<QpIndex>,
    /// The queue pairs in `ready` or `held`.
    listed: Marks,
    /// The queue pairs that a flow blocks.
    blocked: Marks,
    flows: Vec<Flow>,
    path_mtu_bytes: usize,
    is_port_full: bool,
    port_full_count: u64,
    /// Rounds, and posts that were sent outside of one, so far.
    rounds: u64,
}

impl TransmitQueue {
    pub(crate) fn set_path_mtu(&mut self, bytes: usize) {
        self.path_mtu_bytes = bytes;
    }

    pub(crate) fn new(path_mtu_bytes: usize) -> Self {
        Self {
            ready: VecDeque::with_capacity(256),
            held: Vec::with_capacity(256),
            path_mtu_bytes,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// The ready list, in order.
    pub(crate) fn ready(&self) -> impl Iterator<Item = QpIndex> {
        self.ready.iter().copied()
    }

    #[inline]
    pub(crate) fn is_listed(&self, index: QpIndex) -> bool {
        self.listed.has(index)
    }

    /// Puts a queue pair at the end of the ready list, unless it is listed or held already.
    #[inline]
    pub(crate) fn list(&mut self, index: QpIndex) {
        if self.listed.add(index) {
            self.ready.push_back(index);
        }
    }

    /// Takes a queue pair that sends now, outside of a round, off the ready list if it is listed. Returns the
    /// length of the list without it.
    #[inline]
    pub(crate) fn take_out(&mut self, index: QpIndex) -> usize {
        self.rounds += 1;
        if self.listed.remove(index) {
            if self.ready.back() == Some(&index) {
                self.ready.pop_back();
            } else {
                self.ready.retain(|ready| *ready != index);
            }
        }
        self.ready.len()
    }

    /// The length of the ready list.
    #[inline]
    pub(crate) fn listed(&self) -> usize {
        self.ready.len()
    }

    /// Takes the queue pair that has been on the ready list for longest.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<QpIndex> {
        let index = self.ready.pop_front()?;
        self.listed.remove(index);
        Some(index)
    }

    /// Begins a round over the ready list. The port may accept packets again.
    #[inline]
    pub(crate) fn begin_round(&mut self) -> Round {
        self.rounds += 1;
        Round { port_was_full: std::mem::take(&mut self.is_port_full) }
    }

    /// Keeps a queue pair that [`take`](Self::take) returned off the ready list until the round ends: its
    /// packets are held.
    pub(crate) fn hold(&mut self, index: QpIndex) {
        self.listed.add(index);
        self.held.push(index);
    }

    /// Records that the transmit queue of the port is full. The queue pair that [`take`](Self::take) returned
    /// is first in the next round.
    pub(crate) fn wait_for_port(&mut self, index: QpIndex, round: &Round) {
        self.listed.add(index);
        self.ready.push_front(index);
        self.count_full(round);
    }

    /// Records that the transmit queue of a flow is full. The queue pair that [`take`](Self::take) returned
    /// is tried again in the next round; those of other flows are not delayed.
    pub(crate) fn wait_for_flow(&mut self, index: QpIndex, round: &Round) {
        self.hold(index);
        self.count_full(round);
    }

    fn count_full(&mut self, round: &Round) {
        self.port_full_count += u64::from(!round.port_was_full && !self.is_port_full);
        self.is_port_full = true;
    }

    /// Ends a round: puts the held queue pairs back on the ready list.
    #[inline]
    pub(crate) fn end_round(&mut self) {
        self.ready.extend(self.held.drain(..));
    }

    /// Whether queue pairs wait for the port.
    #[inline]
    pub(crate) fn is_port_full(&self) -> bool {
        self.is_port_full
    }

    /// How often the port became full.
    pub(crate) fn port_full_count(&self) -> u64 {
        self.port_full_count
    }

    /// Removes a destroyed queue pair. Its share must have left its flow ([`move_to`](Self::move_to)).
    pub(crate) fn remove(&mut self, index: QpIndex) {
        self.listed.remove(index);
        self.blocked.remove(index);
        self.ready.retain(|listed| *listed != index);
        self.held.retain(|listed| *listed != index);
        for id in 0..self.flows.len() {
            self.flows[id].blocked.retain(|blocked| *blocked != index);
            self.pass_on(Some(FlowId(id as u32)));
        }
    }

    fn flow(&self, flow: Option<FlowId>) -> Option<&Flow> {
        self.flows.get(flow?.0 as usize)
    }

    fn flow_mut(&mut self, flow: Option<FlowId>) -> Option<&mut Flow> {
        self.flows.get_mut(flow?.0 as usize)
    }

    /// Makes a queue pair send to `flow` from now on; its packets in flight count in the window of `flow`.
    /// Returns the flow that it used before.
    pub(crate) fn move_to(&mut self, share: &mut FlowShare, flow: Option<FlowId>) -> Option<FlowId> {
        if let Some(FlowId(id)) = flow
            && self.flows.len() <= id as usize
        {
            self.flows.resize_with(id as usize + 1, Flow::default);
        }
        let old = std::mem::replace(&mut share.flow, flow);
        if let Some(state) = self.flow_mut(old) {
            state.in_flight_pkts = state.in_flight_pkts.saturating_sub(share.in_flight_pkts);
            // The old flow may have blocked this queue pair too; the window of the new flow may have room.
            while let Some(index) = self.flow_mut(old).and_then(|flow| flow.blocked.pop_front()) {
                self.blocked.remove(index);
                self.list(index);
            }
        }
        if let Some(state) = self.flow_mut(flow) {
            state.in_flight_pkts += share.in_flight_pkts;
        }
        old
    }

    /// Sets the window of a flow to the port's present value (bytes). Returns whether it was another.
    #[inline]
    pub(crate) fn set_window(&mut self, flow: Option<FlowId>, window_bytes: usize) -> bool {
        let Some(state) = self.flow_mut(flow) else { return false };
        std::mem::replace(&mut state.window_bytes, window_bytes) != window_bytes
    }

    /// Packets that the window of a flow accepts.
    #[inline]
    pub(crate) fn room_pkts(&self, flow: Option<FlowId>) -> usize {
        let state = self.flow(flow);
        let (window, used) = state.map_or((SOCKET_WINDOW_BYTES, 0), |f| (f.window_bytes, f.in_flight_pkts));
        (window / self.path_mtu_bytes).saturating_sub(used)
    }

    /// Whether packets of a flow are in flight.
    pub(crate) fn is_in_flight(&self, flow: Option<FlowId>) -> bool {
        self.flow(flow).is_some_and(|flow| flow.in_flight_pkts > 0)
    }

    /// Sets how many packets a queue pair has in flight. Fewer than before may unblock queue pairs of its
    /// flow.
    #[inline]
    pub(crate) fn set_in_flight(&mut self, share: &mut FlowShare, in_flight_pkts: usize) {
        let before = std::mem::replace(&mut share.in_flight_pkts, in_flight_pkts);
        if before == in_flight_pkts {
            return;
        }
        let Some(state) = self.flow_mut(share.flow) else { return };
        state.in_flight_pkts = (state.in_flight_pkts + in_flight_pkts).saturating_sub(before);
        if in_flight_pkts < before {
            self.pass_on(share.flow);
        }
    }

    /// Blocks a queue pair until ACKs open the window of its flow.
    pub(crate) fn block(&mut self, index: QpIndex, flow: Option<FlowId>) {
        if let Some(state) = flow.and_then(|flow| self.flows.get_mut(flow.0 as usize))
            && self.blocked.add(index)
        {
            state.blocked.push_back(index);
        }
    }

    /// Whether a queue pair waits for room in the window of its flow.
    pub(crate) fn is_blocked(&self, index: QpIndex) -> bool {
        self.blocked.has(index)
    }

    /// Follows a transmit quantum, which may have left space in the window of its flow: then the flow lists
    /// another queue pair that it blocks. One that left space and is blocked waits for the space of a burst,
    /// or for its own window; the others are tried once in a round.
    #[inline]
    pub(crate) fn pass_on_after(&mut self, index: QpIndex, flow: Option<FlowId>) {
        if self.is_blocked(index) {
            let round = self.rounds;
            let Some(state) = self.flow_mut(flow) else { return };
            let tried = if state.tried.0 == round { state.tried.1 + 1 } else { 1 };
            state.tried = (round, tried);
            if tried >= state.blocked.len() {
                return;
            }
        }
        self.pass_on(flow);
    }

    /// Lists the queue pair that a flow has blocked for longest, if its window has room.
    #[inline]
    fn pass_on(&mut self, flow: Option<FlowId>) {
        let blocks = self.flow(flow).is_some_and(|f| !f.blocked.is_empty());
        if blocks
            && self.room_pkts(flow) > 0
            && let Some(index) = self.flow_mut(flow).and_then(|flow| flow.blocked.pop_front())
        {
            self.blocked.remove(index);
            self.list(index);
        }
    }
}

/// A set of queue pairs, a bit for each.
#[derive(Debug, Default)]
struct Marks(Vec<u64>);

impl Marks {
    #[inline]
    fn has(&self, index: QpIndex) -> bool {
        self.0.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// Adds a queue pair. Returns whether it was absent.
    #[inline]
    fn add(&mut self, index: QpIndex) -> bool {
        let at = index as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        let before = self.0[at];
        self.0[at] |= 1 << (index % 64);
        self.0[at] != before
    }

    /// Removes a queue pair. Returns whether it was present.
    #[inline]
    fn remove(&mut self, index: QpIndex) -> bool {
        let Some(word) = self.0.get_mut(index as usize / 64) else { return false };
        let before = *word;
        *word &= !(1 << (index % 64));
        *word != before
    }
}

/// One round over the ready list.
#[derive(Debug)]
pub(crate) struct Round {
    port_was_full: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: usize = 1024;
    const FLOW: Option<FlowId> = Some(FlowId(0));

    fn taken(queue: &mut TransmitQueue) -> Vec<QpIndex> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn a_queue_pair_is_listed_once_and_taken_in_order() {
        let mut queue = TransmitQueue::new(MTU);
        for index in [3, 65_535, 3, 64, 65_535] {
            queue.list(index);
        }
        assert!(queue.is_listed(64) && !queue.is_listed(63));
        assert_eq!(taken(&mut queue), [3, 65_535, 64]);
        assert!(!queue.is_listed(64) && queue.is_empty());
    }

    #[test]
    fn a_held_queue_pair_stays_listed_and_returns_in_the_next_round() {
        let mut queue = TransmitQueue::new(MTU);
        queue.list(1);
        queue.list(2);
        let index = queue.take().expect("1");
        queue.hold(index);
        queue.list(1);
        assert_eq!(taken(&mut queue), [2]);
        queue.end_round();
        assert_eq!(taken(&mut queue), [1]);
    }

    #[test]
    fn a_full_port_keeps_the_order_and_is_counted_once() {
        let mut queue = TransmitQueue::new(MTU);
        queue.list(1);
        queue.list(2);
        for _ in 0..3 {
            let round = queue.begin_round();
            assert!(!queue.is_port_full());
            let index = queue.take().expect("1");
            queue.wait_for_port(index, &round);
            queue.end_round();
            assert!(queue.is_port_full());
        }
        assert_eq!(queue.port_full_count(), 1);
        assert_eq!(taken(&mut queue), [1, 2]);
    }

    #[test]
    fn a_full_flow_holds_only_its_queue_pairs_and_is_tried_again() {
        let mut queue = TransmitQueue::new(MTU);
        (1..=3).for_each(|index| queue.list(index));
        let round = queue.begin_round();
        for full in [1, 2] {
            assert_eq!(queue.take(), Some(full));
            queue.wait_for_flow(full, &round);
        }
        assert_eq!(queue.take(), Some(3), "another flow is served in the same round");
        assert!(queue.is_empty() && queue.is_listed(1) && queue.is_port_full());
        queue.end_round();
        assert_eq!((queue.port_full_count(), taken(&mut queue)), (1, vec![1, 2]));
    }

    #[test]
    fn a_blocked_queue_pair_is_listed_when_an_ack_opens_the_window() {
        let mut queue = TransmitQueue::new(MTU);
        let (mut one, mut other) = (FlowShare::default(), FlowShare::default());
        assert_eq!((queue.move_to(&mut one, FLOW), queue.move_to(&mut other, FLOW)), (None, None));
        let window = SOCKET_WINDOW_BYTES / MTU;
        queue.set_in_flight(&mut one, window);
        assert_eq!(queue.room_pkts(FLOW), 0);
        queue.block(2, FLOW);
        queue.block(2, FLOW);
        queue.set_in_flight(&mut other, 0);
        assert_eq!(taken(&mut queue), [0; 0]);
        queue.set_in_flight(&mut one, window - 1);
        assert_eq!(taken(&mut queue), [2]);
    }

    #[test]
    fn an_ack_lists_one_blocked_queue_pair_and_the_next_when_room_is_left() {
        let mut queue = TransmitQueue::new(MTU);
        let mut share = FlowShare::default();
        queue.move_to(&mut share, FLOW);
        let window = SOCKET_WINDOW_BYTES / MTU;
        queue.set_in_flight(&mut share, window);
        (1..=4).for_each(|index| queue.block(index, FLOW));
        queue.set_in_flight(&mut share, window - 2);
        assert_eq!(taken(&mut queue), [1], "one for the ACK");
        queue.pass_on_after(1, FLOW);
        assert_eq!(taken(&mut queue), [2], "room is left");
        queue.set_in_flight(&mut share, window);
        queue.block(1, FLOW);
        queue.pass_on_after(0, FLOW);
        assert_eq!(taken(&mut queue), [0; 0], "the window is full");
        queue.set_in_flight(&mut share, window - 1);
        assert_eq!(taken(&mut queue), [3]);
        queue.remove(4);
        assert_eq!(taken(&mut queue), [1], "a destroyed queue pair passes the room on");
        assert!(!queue.is_blocked(4) && !queue.is_blocked(1));
    }

    #[test]
    fn blocked_queue_pairs_that_leave_room_are_tried_once_in_a_round() {
        let mut queue = TransmitQueue::new(MTU);
        let mut share = FlowShare::default();
        queue.move_to(&mut share, FLOW);
        let window = SOCKET_WINDOW_BYTES / MTU;
        queue.set_in_flight(&mut share, window);
        (1..=3).for_each(|index| queue.block(index, FLOW));
        for in_flight in [window - 2, window - 3] {
            queue.set_in_flight(&mut share, in_flight);
            queue.begin_round();
            let mut tried = Vec::new();
            while let Some(index) = queue.take() {
                tried.push(index);
                // It waits for a burst, which does not fit.
                queue.block(index, FLOW);
                queue.pass_on_after(index, FLOW);
            }
            queue.end_round();
            assert_eq!(tried, [1, 2, 3]);
        }
    }

    #[test]
    fn packets_in_flight_move_with_a_queue_pair_to_its_new_flow() {
        let mut queue = TransmitQueue::new(MTU);
        let mut share = FlowShare::default();
        queue.move_to(&mut share, FLOW);
        queue.set_in_flight(&mut share, 10);
        queue.block(7, FLOW);
        let before = queue.room_pkts(FLOW);
        assert_eq!(queue.move_to(&mut share, Some(FlowId(3))), FLOW);
        assert_eq!((queue.room_pkts(FLOW), queue.room_pkts(share.flow())), (before + 10, before));
        assert_eq!(taken(&mut queue), [7]);
    }

    #[test]
    fn a_destroyed_queue_pair_is_in_no_list() {
        let mut queue = TransmitQueue::new(MTU);
        let mut share = FlowShare::default();
        queue.move_to(&mut share, FLOW);
        queue.list(1);
        queue.block(1, FLOW);
        queue.remove(1);
        queue.move_to(&mut share, None);
        assert!(queue.is_empty() && !queue.is_listed(1));
    }
}
