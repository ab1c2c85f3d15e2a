//! Receiving through the ingress hook: each packet of a batch is judged; consecutive packets that pass
//! continue as one batch.

use std::ops::Range;

use super::chain::Fate;
use super::held::Late;
use super::outgoing::Outgoing;
use super::tap::Copied;
use super::{HookCounters, HookPoint, Hooks, Target, Verdict};
use roxie::port::OwnedPacket;
use roxie::port::{Headers, Port, RxBatch, RxQueue};
use roxie::registry::SLOTS;
use roxie::stages::{Deliver, Redirected};
use wire::icrc::ICRC_LEN;

/// Most packets redirected to other processes from one batch; their sockets hold no more either.
const REDIRECTED_MAX: usize = 1024;

impl Hooks {
    /// Whether received packets must come here first.
    #[inline]
    pub(crate) fn has_ingress(&self) -> bool {
        self.ingress.is_active
    }

    /// Judges a batch; packets that pass go to `deliver`.
    pub(crate) fn receive(&mut self, batch: &RxBatch<'_>, deliver: Deliver<'_>) {
        if !self.taps.is_empty() {
            self.tap_incoming(batch, Copied::Others);
        }
        if self.ingress.hook.is_none() {
            return deliver(batch);
        }
        let key = batch.flow_key();
        // Addresses of two families: the transport counts such packets.
        let Some(mut headers) = Headers::new(&key, batch.src_port, batch.dst_port) else {
            return deliver(batch);
        };
        if let Some([src, dst]) = batch.macs {
            headers.set_macs(src.0, dst.0);
        }
        self.scratch.begin(headers, true);
        // The packets from `start` to `at` pass unchanged.
        let (mut start, mut at) = (0, 0);
        while let Some(hook) = &mut self.ingress.hook
            && at < batch.bytes.len()
        {
            let left = &batch.bytes[at..];
            let bytes = &left[..left.len().min(batch.segment.max(1))];
            let frame_len = (self.scratch.headers_len() + bytes.len()) as u64;
            let counters = &mut self.ingress.counters;
            counters.packets += 1;
            counters.bytes += frame_len;
            let fate = hook.judge(&mut self.scratch, &self.runtime, bytes);
            if !fate.is_plain_pass() {
                deliver_part(batch, start..at, deliver);
                start = at + bytes.len();
                self.apply_ingress_verdict(&part(batch, at..start), fate, deliver);
                at = start;
                continue;
            }
            counters.pass += 1;
            at += bytes.len();
            // The last packet of the batch may be shorter.
            let alike = (left.len() / bytes.len() - 1) as u64;
            if alike > 0 && hook.foresees_pass() {
                hook.repeat(alike, alike * frame_len);
                counters.count_passed(alike, frame_len);
                at += alike as usize * bytes.len();
            }
        }
        deliver_part(batch, start..at, deliver);
    }

    /// Applies a verdict other than a plain pass. `packet` is a batch of one.
    #[cold]
    fn apply_ingress_verdict(&mut self, packet: &RxBatch<'_>, fate: Fate, deliver: Deliver<'_>) {
        // The device that handles a request copies it.
        if !matches!(fate.verdict, Verdict::Pass | Verdict::Redirect(Target::Slot { .. })) {
            self.tap_request(packet);
        }
        if self.taps.want_verdicts()
            && let Some((body, icrc)) = packet.bytes.split_last_chunk::<ICRC_LEN>()
        {
            self.tap_verdict(HookPoint::Ingress, fate.verdict, body, Some(*icrc));
        }
        let Hooks { ingress, scratch, held, bounced, redirected, slots, runtime, .. } = self;
        let counters = &mut ingress.counters;
        if !counters.count(fate.verdict) {
            return;
        }
        if let Verdict::Redirect(Target::Ring(key)) = fate.verdict {
            let bytes = scratch.copy(fate.changed.as_ref(), packet.bytes);
            return self.keep_for_reader(HookPoint::Ingress, key, bytes);
        }
        let changed = fate.changed.map(|frame| scratch.packet_at(&frame, packet.queue));
        let packet = match &changed {
            None => packet,
            // The ICRC yields the identification; the one in the header may be made up.
            Some(Some(packet)) => &RxBatch { ip_id: None, ..*packet },
            Some(None) => return counters.malformed += 1,
        };
        match fate.verdict {
            Verdict::Tx => bounce(packet, bounced, counters),
            Verdict::Redirect(Target::Interface(ifindex)) if ifindex == scratch.ifindex() => {
                bounce(packet, bounced, counters);
            }
            // A packet that was handed over once is not handed on: two processes could do so for ever.
            Verdict::Redirect(Target::Slot { slot: to, .. })
                if slots.iter().any(|slot| to == u32::from(*slot)) || packet.queue == RxQueue::Forwarded =>
            {
                deliver(packet);
            }
            Verdict::Redirect(Target::Slot { slot, passes })
                if slot < u32::from(SLOTS) && redirected.len() < REDIRECTED_MAX =>
            {
                let packet = OwnedPacket::new(packet, packet.bytes);
                redirected.push(Redirected { slot: slot as u16, passes, packet });
            }
            Verdict::Redirect(_) => counters.redirect_errors += 1,
            Verdict::Pass | Verdict::Drop | Verdict::Aborted | Verdict::Invalid => {
                for _ in 0..=u8::from(fate.is_doubled) {
                    if fate.hold_ns == 0 {
                        deliver(packet);
                    } else {
                        let late = Late::In(OwnedPacket::new(packet, packet.bytes));
                        counters.hold(held.keep(runtime.now_ns() + fate.hold_ns, late));
                    }
                }
                counters.doubled += u64::from(fate.is_doubled);
            }
        }
    }

    /// When the next packet that is held back is due.
    #[inline]
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.held.next_ns()
    }

    /// Releases the packets that were held back until now.
    pub(crate) fn release(&mut self, now_ns: u64, port: &mut dyn Port, deliver: Deliver<'_>) {
        let mut has_sent = false;
        while let Some(late) = self.held.take(now_ns) {
            match late {
                Late::In(packet) => deliver(&packet.batch()),
                Late::Out(out) => {
                    self.send_late(port, &out);
                    has_sent = true;
                }
            }
        }
        if has_sent {
            port.flush();
        }
    }
}

/// Queues a packet to be sent back after the port has delivered all batches.
fn bounce(packet: &RxBatch<'_>, bounced: &mut Vec<Outgoing>, counters: &mut HookCounters) {
    match Outgoing::back(packet) {
        Some(out) => bounced.push(out),
        None => counters.malformed += 1,
    }
}

/// Returns a part of a batch, at packet boundaries.
fn part<'a>(batch: &RxBatch<'a>, range: Range<usize>) -> RxBatch<'a> {
    let before = (range.start / batch.segment.max(1)) as u16;
    let ip_id = batch.ip_id.map(|id| id.wrapping_add(before));
    let bytes = &batch.bytes[range];
    RxBatch { ip_id, bytes, segment: batch.segment.min(bytes.len().max(1)), ..*batch }
}

fn deliver_part(batch: &RxBatch<'_>, range: Range<usize>, deliver: Deliver<'_>) {
    if range.len() == batch.bytes.len() {
        deliver(batch);
    } else if !range.is_empty() {
        deliver(&part(batch, range));
    }
}
