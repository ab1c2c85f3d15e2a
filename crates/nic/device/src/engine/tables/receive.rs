//! A packet's journey in: port, hooks, parse, ICRC, queue pair, application memory. Completions and
//! acknowledgements follow at the end of each receive batch.

use transport::{Instant, PacketSource, RecvQueue, numbering};
use wire::{DropReason, Gid, Packet, Qpn};

use super::Tables;
use crate::port::OwnedPacket;
use crate::qp_numbers::QpIndex;

use crate::port::{Icrc, RxBatch};
use crate::srqs::ScopedSrqs;
use crate::trace;

impl Tables {
    /// Receives one GRO batch: packets of equal size (the last may be shorter) from one sender to one
    /// address.
    pub(crate) fn receive_batch(&mut self, now: Instant, batch: &RxBatch<'_>) {
        let from = PacketSource {
            src: Gid::from(batch.src),
            src_port: batch.src_port,
            dst: Gid::from(batch.dst),
            tos: batch.tos,
            ttl: batch.ttl,
        };
        if batch.icrc == Icrc::Omitted {
            for bytes in batch.packets() {
                match Packet::parse(bytes) {
                    Ok(packet) => self.receive_packet(now, &packet, bytes, &from, batch),
                    Err(reason) => self.count(reason),
                }
            }
            return;
        }
        let is_v6 = batch.src.is_ipv6();
        let Some(icrc) = batch.icrc_header() else { return self.count(DropReason::NotForUs) };
        let mut expected_id = batch.ip_id.unwrap_or(0);
        let mut flow = self.identifications.flow(batch);
        let mut has_segment_indices = true;
        for bytes in batch.packets() {
            let packet = match Packet::parse(bytes) {
                Ok(packet) => packet,
                Err(reason) => {
                    self.count(reason);
                    continue;
                }
            };
            match icrc.verify(expected_id, bytes) {
                Ok(id) if id == expected_id || is_v6 => expected_id = id.wrapping_add(1),
                Ok(id) if flow.as_mut().is_some_and(|flow| flow.accepts(now, id)) => {
                    has_segment_indices = false;
                    expected_id = id.wrapping_add(1);
                }
                Ok(_) => {
                    has_segment_indices = false;
                    self.count(DropReason::BadIcrc);
                    expected_id = expected_id.wrapping_add(1);
                    continue;
                }
                Err(reason) => {
                    self.count(reason);
                    continue;
                }
            }
            self.receive_packet(now, &packet, bytes, &from, batch);
        }
        if let Some(mut flow) = flow {
            if has_segment_indices && expected_id == batch.packets().len() as u16 {
                flow.fits_segments(now);
            }
            self.identifications.put(flow);
        }
    }

    #[inline]
    fn receive_packet(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        bytes: &[u8],
        from: &PacketSource,
        batch: &RxBatch<'_>,
    ) {
        let qpn = packet.bth.dest_qp;
        if let Some(index) = self.index_of(qpn).filter(|_| qpn != Qpn::GSI) {
            return self.deliver(now, index, packet, from);
        }
        // Shared memory carries the connections of one process only, and there is no ICRC to forward.
        if batch.icrc == Icrc::Omitted {
            return self.count(DropReason::NotForUs);
        }
        match qpn {
            Qpn::GSI => self.receive_mad(packet, bytes, batch),
            Qpn::MULTICAST => self.receive_multicast(now, packet, from),
            _ => self.misroute(numbering::slot_of(qpn), bytes, batch),
        }
    }

    /// Passes a packet to a queue pair of this process.
    #[inline]
    pub(crate) fn deliver(&mut self, now: Instant, index: QpIndex, packet: &Packet<'_>, from: &PacketSource) {
        if self.observer.disturbs() {
            return self.deliver_disturbed(now, index, packet, from);
        }
        self.deliver_now(now, index, packet, from);
    }

    /// As [`deliver`](Self::deliver); the queue pair may find no receive although one is posted.
    #[cold]
    fn deliver_disturbed(&mut self, now: Instant, index: QpIndex, packet: &Packet<'_>, from: &PacketSource) {
        let Self { qps, observer, .. } = self;
        let entry = qps.get(index as usize).and_then(Option::as_deref);
        let refuses = entry.is_some_and(|entry| observer.hides_receives(&entry.qp, packet));
        let hidden = if refuses { self.receives_of(index).map(RecvQueue::hide) } else { None };
        self.deliver_now(now, index, packet, from);
        if let Some(hidden) = hidden
            && let Some(queue) = self.receives_of(index)
        {
            queue.show(hidden);
            if let Some(entry) = self.qp_mut(index) {
                // The packet may have moved the queue pair to ERR.
                entry.qp.flush_shown_receives();
            }
        }
    }

    /// The queue that the messages of a queue pair take their receives from.
    fn receives_of(&mut self, index: QpIndex) -> Option<&mut RecvQueue> {
        let Self { qps, srqs, .. } = self;
        let entry = qps.get_mut(index as usize).and_then(Option::as_deref_mut)?;
        match entry.srqs.own {
            Some(own) => Some(&mut srqs.get_mut(own)?.queue),
            None => Some(entry.qp.recv_queue_mut()),
        }
    }

    #[inline]
    fn deliver_now(&mut self, now: Instant, index: QpIndex, packet: &Packet<'_>, from: &PacketSource) {
        let slot = self.slot();
        let Self { qps, srqs, mrs, reorder, .. } = self;
        let Some(entry) = qps.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return self.count(DropReason::UnknownQp);
        };
        let srqs = ScopedSrqs { srqs, slot, scope: entry.srqs };
        let result = entry.qp.handle_packet(now, packet, from, mrs, srqs, reorder);
        if !entry.touched {
            entry.touched = true;
            self.touched.push(index);
        }
        if let Err(reason) = result {
            self.count(reason);
        }
    }

    /// Ends a batch for each queue pair that received packets: ACKs become due or are delayed, and
    /// completions are delivered. `is_polled`: an application thread that polls steadily received the batch.
    pub(crate) fn end_of_batch(&mut self, now: Instant, is_polled: bool) {
        while let Some(index) = self.touched.pop() {
            if let Some(entry) = self.qp_mut(index) {
                entry.touched = false;
                entry.qp.end_of_batch(now, is_polled);
                self.update_after_input(now, index);
                if sys::trace::is_on() {
                    self.qp(index).into_iter().for_each(|entry| trace::received(now, &entry.qp));
                }
            }
        }
    }

    fn receive_mad(&mut self, packet: &Packet<'_>, raw: &[u8], batch: &RxBatch<'_>) {
        match packet.mad() {
            Ok(bytes) => self.outbox.push_mad(*bytes, OwnedPacket::new(batch, raw)),
            Err(reason) => self.count(reason),
        }
    }

    /// Keeps a packet of another process for forwarding. The kernel steers a GRO batch by its first packet,
    /// so the other packets can belong to other processes.
    fn misroute(&mut self, slot: u16, bytes: &[u8], batch: &RxBatch<'_>) {
        if !self.outbox.push_misrouted(slot, batch, bytes) {
            self.count(DropReason::QueueFull);
        }
    }

    /// Delivers a multicast packet to each queue pair of its group.
    pub(crate) fn receive_multicast(&mut self, now: Instant, packet: &Packet<'_>, from: &PacketSource) {
        let mut delivered = false;
        for at in 0..self.groups.members.len() {
            let (group, index) = self.groups.members[at];
            if group == from.dst {
                delivered = true;
                self.deliver(now, index, packet, from);
            }
        }
        if !delivered {
            self.count(DropReason::NotForUs);
        }
    }
}
