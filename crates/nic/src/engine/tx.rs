//! A packet's journey out: next QP with work, packet built in place, ICRC, burst, one system call.

use transport::{Instant, UdDest};
use wire::{Bth, Deth, FlushIcrc, Gid, Opcode, PKey, QKey, Qpn};

use crate::engine::{self, Core, TX_QUOTA, flow_key};
use crate::port::{FlowKey, GSI_FLOW_SLOT};

/// Payload that fills a burst, which is one datagram to the kernel: 62 packets of 1 KiB with their headers. Less costs
/// as much. Path MTUs below 1 KiB reach the kernel's limit of packets first.
pub(crate) const BURST_BYTES: usize = 62 * 1024;
const PACKET_MIN: usize = 1024;

impl Core {
    /// Sends everything that may be sent now.
    pub(crate) fn transmit(&mut self, now: Instant) {
        while self.transmit_turn(now) {}
    }

    /// Sends what may be sent now, up to where a QP has more answers than its quota. What its peer has asked meanwhile, an
    /// answer that was lost for one, should not wait behind them. Returns whether there is more to send.
    pub(crate) fn transmit_turn(&mut self, now: Instant) -> bool {
        let was_pushed_back = std::mem::take(&mut self.tables.pushed_back);
        if self.tables.ready.is_empty() {
            return false;
        }
        let mut answers = false;
        while !answers && let Some(index) = self.tables.ready.pop_front() {
            let entry = self.tables.qps.get(usize::from(index)).and_then(Option::as_deref);
            let tx_state = self.port.tx_state(entry.and_then(|entry| entry.flow));
            if !tx_state.has_room {
                // First in line when there is; see `Tables::retry_at`.
                self.tables.ready.push_front(index);
                self.tables.pushed_back = true;
                self.tables.push_backs += u64::from(!was_pushed_back);
                break;
            }
            answers = self.transmit_qp(now, index, tx_state.window_bytes);
        }
        self.flush();
        answers
    }

    /// Sends what is committed, and notes when it has left.
    fn flush(&mut self) {
        if self.port.flush() > 0 {
            self.tables.left_at = engine::now();
        }
    }

    /// One QP's turn: up to `TX_QUOTA` packets. Returns whether it has more answers to give.
    fn transmit_qp(&mut self, now: Instant, index: u16, window_bytes: usize) -> bool {
        let Core { port, hooks, tables } = self;
        let Some(entry) = tables.qps.get(usize::from(index)).and_then(Option::as_deref) else {
            return false;
        };
        let flow = entry.flow;
        if let Some(flow) = flow
            && let Some(state) = tables.flows.get_mut(flow.0 as usize)
        {
            state.window_bytes = window_bytes;
        }
        let mut budget = tables.flow_budget(flow);
        let Some(entry) = tables.qps.get_mut(usize::from(index)).and_then(Option::as_deref_mut) else {
            return false;
        };
        entry.ready = false;
        // A window that does not hold all that is pending is used by whole bursts. The acknowledgement that opens the rest
        // is under way: the last packet that a budget allowed has asked for one, and so has every second burst. (Not so the
        // last that a rate allowed.)
        let room = entry.qp.window_room().min(budget);
        let burst = BURST_BYTES / entry.qp.path_mtu_bytes().max(PACKET_MIN);
        if !entry.qp.is_paced() && entry.qp.packets_in_flight() >= burst && entry.qp.pending_packets() > room
        {
            budget = room - room % burst;
        }
        // What takes two bursts by itself leaves in two halves: the peer works on the first one while the second is made.
        let lone = entry.qp.lone_packets();
        let half = if lone > burst && lone <= 2 * burst { lone.div_ceil(2) } else { usize::MAX };
        let (mut sent, mut is_other) = (0, false);
        hooks.change_flow();
        hooks.set_sender(Some(entry.qp.qpn()));
        let mut turn = entry.qp.turn(now, budget);
        while sent < TX_QUOTA {
            if sent == half {
                hooks.change_flow();
                port.flush();
            }
            let Some(packet) = turn.poll(&tables.mrs, port.tx_slot()) else { break };
            let flow = if packet.is_datagram {
                let UdDest { av, remote_qpn, .. } = turn.qp().datagram_dest();
                let src = tables.gids.address(av.sgid_index);
                src.and_then(|src| port.datagram_flow(&flow_key(src, av, *remote_qpn)).ok())
            } else {
                flow
            };
            if packet.is_datagram || is_other {
                is_other = packet.is_datagram;
                hooks.change_flow();
            }
            if let Some(flow) = flow {
                hooks.commit(&mut **port, flow, packet.len);
            }
            sent += 1;
        }
        let budget = turn.budget();
        hooks.change_flow();
        if (1..TX_QUOTA).contains(&sent) && tables.ready.is_empty() {
            // Nothing joins them: the peer need not wait for the bookkeeping.
            self.flush();
        }
        let tables = &mut self.tables;
        let more = tables.book(now, index);
        if more && sent == TX_QUOTA {
            tables.make_ready(index);
            return tables.qp_mut(index).is_some_and(|entry| entry.qp.owes_answers());
        } else if more && budget == 0 {
            // Only the flow's window holds it back: an acknowledgement there makes it ready again.
            tables.block(index, flow);
        }
        false
    }

    /// Sends one MAD from QP1 to QP1 (UD SEND Only, IBA 13.5.1).
    pub(crate) fn send_mad(&mut self, src: Gid, dst: Gid, mad: &[u8; wire::mad::MAD_LEN]) {
        let (src, dst, flush_icrc) = (src.ip(), dst.ip(), FlushIcrc::Iba);
        let key = FlowKey { src, dst, dst_slot: GSI_FLOW_SLOT, tos: 0, ttl: 64, flush_icrc };
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
            self.hooks.change_flow();
            self.hooks.set_sender(Some(Qpn::GSI));
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
