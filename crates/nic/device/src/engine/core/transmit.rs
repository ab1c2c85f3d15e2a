//! A packet's journey out: the next queue pair, the packet built in the port's memory, hooks, ICRC, and a
//! burst that leaves with one system call.

use transport::{Instant, UdDest};
use wire::{Bth, Deth, FlushIcrc, Gid, Opcode, PKey, QKey, Qpn};

use super::{Core, flow_key};
use crate::engine::entry::QpEntry;
use crate::engine::tables::Tables;
use crate::port::{FlowKey, GSI_FLOW_SLOT, TxRoom};
use crate::qp_numbers::QpIndex;
use crate::sched::{Decision, Quantum, Trigger, decide};
use crate::trace::{self, Wait};

impl Core {
    /// Sends all packets that may leave now.
    pub(crate) fn transmit(&mut self, now: Instant) {
        while self.transmit_round(now, Trigger::Flush) {}
    }

    /// One round over the ready list: each queue pair sends a quantum, or holds its packets as the
    /// scheduler decides. The round ends after a queue pair that owes more responses than a quantum, so that
    /// requests that arrived meanwhile are received first. Returns whether it ended for that reason.
    pub(crate) fn transmit_round(&mut self, now: Instant, trigger: Trigger) -> bool {
        if self.tables.queue.is_empty() {
            return false;
        }
        let round = self.tables.queue.begin_round();
        let mut owes_responses = false;
        while !owes_responses && let Some(index) = self.tables.queue.take() {
            let Tables { qps, queue, observer, .. } = &mut self.tables;
            let Some(entry) = qps.get(index as usize).and_then(Option::as_deref) else { continue };
            let flow = entry.share.flow();
            let tx_state = self.port.tx_state(flow);
            let room = if self.hooks.is_tx_paused(now) { TxRoom::PortFull } else { tx_state.room };
            match room {
                TxRoom::Open => {}
                TxRoom::FlowFull => {
                    trace::waits(entry.qp.qpn(), Wait::Flow);
                    queue.wait_for_flow(index, &round);
                    continue;
                }
                TxRoom::PortFull => {
                    trace::waits(entry.qp.qpn(), Wait::Port);
                    queue.wait_for_port(index, &round);
                    break;
                }
            }
            queue.set_window(flow, tx_state.window_bytes);
            let (backlog, room) = (entry.backlog(), queue.room_pkts(flow));
            let Some(packets_max) = observer.limit(now, index, &entry.qp, &backlog) else {
                queue.hold(index);
                continue;
            };
            match decide(trigger, &backlog, entry.send_cq.is_backlogged(), room, &self.tuning) {
                Decision::Send(quantum) => {
                    let quantum = Quantum { max_pkts: quantum.max_pkts.min(packets_max), ..quantum };
                    owes_responses = self.transmit_quantum(now, index, quantum);
                }
                Decision::Hold => {
                    entry.send_cq.spend_poll(self.polls);
                    queue.hold(index);
                }
            }
            self.tables.queue.pass_on_after(index, flow);
        }
        self.port.flush();
        self.tables.queue.end_round();
        owes_responses
    }

    /// Sends one quantum of a queue pair. Returns whether it owes more responses.
    #[inline]
    pub(super) fn transmit_quantum(&mut self, now: Instant, index: QpIndex, quantum: Quantum) -> bool {
        if sys::trace::is_on() {
            return self.trace_quantum(now, index, quantum);
        }
        self.transmit_packets(now, index, quantum).1
    }

    #[cold]
    fn trace_quantum(&mut self, now: Instant, index: QpIndex, quantum: Quantum) -> bool {
        let before = self.tables.qp(index).map(|entry| trace::Before::of(now, &entry.qp));
        let (sent, owes_responses) = self.transmit_packets(now, index, quantum);
        if let (Some(before), Some(entry)) = (before, self.tables.qp(index)) {
            before.end(&entry.qp, sent);
        }
        owes_responses
    }

    /// See [`transmit_quantum`](Self::transmit_quantum). Returns the packets that were sent, and whether the
    /// queue pair owes more responses.
    fn transmit_packets(&mut self, now: Instant, index: QpIndex, quantum: Quantum) -> (usize, bool) {
        let Core { port, hooks, tables, .. } = self;
        let Some(entry) = tables.qps.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return (0, false);
        };
        let (flow, qpn) = (entry.share.flow(), entry.qp.qpn());
        let (mut sent, mut is_other_flow) = (0, false);
        hooks.begin(qpn);
        let mut sending = entry.qp.transmit_quantum(now, quantum.budget_pkts);
        while sent < quantum.max_pkts {
            if sent == quantum.flush_at_pkts {
                hooks.change_flow();
                port.flush();
            }
            let Some(packet) = sending.poll(&tables.mrs, port.tx_slot()) else { break };
            let flow = if packet.is_datagram {
                let UdDest { av, remote_qpn, .. } = sending.qp().datagram_dest();
                let src = tables.gids.source(av.sgid_index);
                src.and_then(|src| port.datagram_flow(&flow_key(src, av, *remote_qpn)).ok())
            } else {
                flow
            };
            if packet.is_datagram || is_other_flow {
                is_other_flow = packet.is_datagram;
                hooks.change_flow();
            }
            if let Some(flow) = flow {
                hooks.commit(&mut **port, flow, packet.len);
            }
            sent += 1;
        }
        let budget_pkts = sending.budget();
        hooks.change_flow();
        let is_full = sent == quantum.max_pkts;
        if sent > 0 && !is_full && tables.queue.is_empty() {
            // No other queue pair extends the burst, so it leaves before the events are delivered.
            port.flush();
        }
        if !tables.follow(now, index) {
            return (sent, false);
        }
        if is_full {
            tables.queue.list(index);
            let owes_responses = |entry: &QpEntry| entry.qp.backlog().owes_responses;
            return (sent, tables.qp(index).is_some_and(owes_responses));
        }
        if budget_pkts == 0 {
            // The window of the flow blocks the queue pair; an ACK on that flow lists it again.
            trace::waits(qpn, Wait::Window);
            tables.queue.block(index, flow);
        }
        (sent, false)
    }

    /// Sends one management datagram from QP1 to QP1 (UD SEND Only, IBA 13.5.1).
    pub(crate) fn send_mad(&mut self, src: Gid, dst: Gid, mad: &[u8; wire::mad::MAD_LEN]) {
        let gids = &self.tables.gids;
        let above = gids.index_of(&src).and_then(|index| gids.source(index)).map_or(0, |source| source.above);
        let (src, dst, flush_icrc) = (src.ip(), dst.ip(), FlushIcrc::Iba);
        let key = FlowKey { src, dst, dst_slot: GSI_FLOW_SLOT, tos: 0, ttl: 64, flush_icrc, above };
        let Ok(flow) = self.port.datagram_flow(&key) else { return };
        let bth = Bth {
            opcode: Opcode::UD_SEND_ONLY,
            p_key: PKey::DEFAULT,
            dest_qp: Qpn::GSI,
            psn: self.tables.next_gsi_psn(),
            ..Bth::default()
        };
        let deth = Deth { q_key: QKey::GSI, src_qp: Qpn::GSI };
        if let Some(len) = write_mad(self.port.tx_slot(), &bth, deth, mad) {
            self.hooks.begin(Qpn::GSI);
            self.hooks.commit(&mut *self.port, flow, len);
            self.hooks.change_flow();
            self.port.flush();
        }
    }
}

fn write_mad(buf: &mut [u8], bth: &Bth, deth: Deth, mad: &[u8]) -> Option<usize> {
    let (head, rest) = buf.split_first_chunk_mut::<{ Bth::LEN }>()?;
    bth.emit(head);
    let (head, rest) = rest.split_first_chunk_mut::<{ Deth::LEN }>()?;
    deth.emit(head);
    rest.get_mut(..mad.len())?.copy_from_slice(mad);
    Some(Bth::LEN + Deth::LEN + mad.len())
}
