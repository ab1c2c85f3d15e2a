//! Sending through the egress hook: each packet is judged in the port's slot, where the transport has
//! written it, and then committed.

use wire::icrc::ICRC_LEN;

use super::chain::Fate;
use super::held::Late;
use super::outgoing::Outgoing;
use super::{HookPoint, Hooks, Target, Verdict};
use roxie::port::{FlowId, FlowKey, Port, RxQueue, TxRoom};

/// Packets that leave without running the hook, because it has foretold its verdict on them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Foreseen {
    /// Bytes of each, without ICRC; 0, which no packet has, while no verdict is foretold.
    len: usize,
    /// Number of such packets.
    packets: u64,
}

impl Hooks {
    /// Announces that the next packets may belong to another flow, or that the flow has changed. Also to
    /// be called when no more packets follow for now: it counts the foreseen ones.
    #[inline]
    pub(crate) fn change_flow(&mut self) {
        self.egress_flow = None;
        self.taps.change_flow();
        self.end_foreseen();
    }

    /// Counts the foreseen packets.
    #[inline]
    fn end_foreseen(&mut self) {
        let Foreseen { len, packets } = std::mem::take(&mut self.foreseen);
        if packets > 0
            && let Some(hook) = &mut self.egress.hook
        {
            let frame_len = (self.scratch.headers_len() + len + ICRC_LEN) as u64;
            hook.repeat(packets, packets * frame_len);
            self.egress.counters.count_passed(packets, frame_len);
        }
    }

    /// Commits the `len` bytes at the start of the port's slot to `flow`, if the egress hook passes them.
    #[inline]
    pub(crate) fn commit(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        if !self.egress.is_active {
            return port.tx_commit(flow, len);
        }
        if self.foreseen.len == len && self.egress_flow == Some(flow) {
            self.foreseen.packets += 1;
            return self.leave(port, flow, len);
        }
        self.judge_outgoing(port, flow, len);
    }

    /// Sends what the ingress hook has sent back; like all packets that leave, these go through the
    /// egress hook.
    pub(crate) fn send_bounced(&mut self, port: &mut dyn Port) {
        if self.bounced.is_empty() {
            return;
        }
        let mut bounced = std::mem::take(&mut self.bounced);
        for out in bounced.drain(..) {
            match out.stage(port) {
                Some(flow) => {
                    self.xmit += 1;
                    if port.tx_state(Some(flow)).room != TxRoom::Open {
                        // The packet may be dropped. Later ones wait at the receiving socket.
                        self.redirects.pause(self.runtime.now_ns());
                    }
                    self.change_flow();
                    self.set_sender(None);
                    self.commit(port, flow, out.bytes.len());
                }
                None => self.xmit_errors += 1,
            }
        }
        self.change_flow();
        self.bounced = bounced;
        port.flush();
    }

    /// Sends a packet that has been through the hook.
    pub(super) fn send_late(&mut self, port: &mut dyn Port, out: &Outgoing) {
        match out.stage(port) {
            Some(flow) => {
                self.taps.change_flow();
                self.taps.sender = out.sender;
                self.leave(port, flow, out.bytes.len());
                self.taps.change_flow();
            }
            None => self.egress.counters.malformed += 1,
        }
    }

    fn judge_outgoing(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        self.end_foreseen();
        let Some(hook) = &mut self.egress.hook else { return self.leave(port, flow, len) };
        if self.egress_flow != Some(flow) {
            let Some(headers) = port.headers(flow) else {
                debug_assert!(false, "no such flow");
                return;
            };
            self.scratch.begin(headers, false);
            self.egress_flow = Some(flow);
        }
        let with_icrc = len + ICRC_LEN;
        let counters = &mut self.egress.counters;
        counters.packets += 1;
        counters.bytes += (self.scratch.headers_len() + with_icrc) as u64;
        let slot = port.tx_slot();
        let Some(packet) = slot.get_mut(..with_icrc) else { return };
        packet[len..].fill(0);
        let fate = hook.judge(&mut self.scratch, &self.runtime, packet);
        if fate.is_plain_pass() {
            counters.pass += 1;
            if hook.foresees_pass() {
                self.foreseen = Foreseen { len, packets: 0 };
            }
            return self.leave(port, flow, len);
        }
        self.apply_egress_verdict(port, flow, len, fate);
    }

    /// Applies a verdict other than a plain pass.
    #[cold]
    fn apply_egress_verdict(&mut self, port: &mut dyn Port, flow: FlowId, mut len: usize, fate: Fate) {
        let verdict = match fate.verdict {
            // A redirect to the interface that the packet leaves through has the meaning of PASS.
            Verdict::Redirect(Target::Interface(ifindex)) if ifindex == self.scratch.ifindex() => {
                Verdict::Pass
            }
            // The kernel does the same for programs of a devmap.
            Verdict::Tx => Verdict::Invalid,
            verdict => verdict,
        };
        if self.taps.want_verdicts() {
            let body = port.tx_slot().get(..len).unwrap_or_default();
            self.tap_verdict(HookPoint::Egress, verdict, body, None);
        }
        let Hooks { egress, scratch, .. } = self;
        let counters = &mut egress.counters;
        if !counters.count(verdict) {
            return;
        }
        if let Verdict::Redirect(Target::Ring(key)) = verdict {
            let with_icrc = port.tx_slot().get(..len + ICRC_LEN).unwrap_or_default();
            let bytes = scratch.copy(fate.changed.as_ref(), with_icrc);
            return self.keep_for_reader(HookPoint::Egress, key, bytes);
        }
        if let Verdict::Redirect(_) = verdict {
            return counters.redirect_errors += 1;
        }
        let Some(key) = scratch.headers().map(|headers| *headers.key()) else { return };
        let (mut key, mut flow) = (key, flow);
        if let Some(frame) = &fate.changed {
            let left = scratch.packet_at(frame, RxQueue::Slot).and_then(|packet| Outgoing::back(&packet));
            let Some(left) = left else { return counters.malformed += 1 };
            let to = FlowKey { dst_slot: key.dst_slot, ..left.key };
            if to != key {
                // A port keeps the order within a flow only.
                port.flush();
                let Ok(other) = port.datagram_flow(&to) else { return counters.malformed += 1 };
                (key, flow) = (to, other);
            }
            len = left.bytes.len();
            port.tx_slot()[..len].copy_from_slice(&left.bytes);
            self.taps.change_flow();
        }
        if fate.hold_ns == 0 && !fate.is_doubled {
            return self.leave(port, flow, len);
        }
        let out = Outgoing { key, sender: self.taps.sender, bytes: port.tx_slot()[..len].to_vec() };
        for _ in 0..=u8::from(fate.is_doubled) {
            if fate.hold_ns == 0 {
                port.tx_slot()[..len].copy_from_slice(&out.bytes);
                self.leave(port, flow, len);
            } else {
                let kept = self.held.keep(self.runtime.now_ns() + fate.hold_ns, Late::Out(out.clone()));
                self.egress.counters.hold(kept);
            }
        }
        self.egress.counters.doubled += u64::from(fate.is_doubled);
    }
}
