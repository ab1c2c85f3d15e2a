//! A packet's journey in: port, parse, ICRC, QP, memory. Completions and acknowledgements follow per batch.

use transport::{Instant, PacketSource};
use wire::{DropReason, Gid, Operation, PKey, Packet, QKey, Qpn, Service, Xrceth};

use crate::engine::Core;
use crate::engine::tables::{Mad, OwnedPacket, Tables};
use crate::notice::notice;
use crate::port::{RxQueue, RxQueues, RxTrain};
use crate::srqs::ScopedSrqs;

/// Datagrams kept for the connection manager from one batch; more are dropped (it retries).
const MADS_MAX: usize = 1024;
/// Packets of other processes kept from one batch; more are dropped (the transport recovers).
const MISROUTED_MAX: usize = 256;

impl Core {
    /// Takes one batch from the port and gives every packet to its QP; returns the number of trains.
    pub(crate) fn receive(&mut self, now: Instant, queues: RxQueues) -> usize {
        let Core { port, hooks, tables } = self;
        let mut deliver = |train: &RxTrain<'_>| tables.receive_train(now, train);
        let trains = if hooks.is_paused(now) {
            0
        } else if hooks.has_ingress() {
            port.will_be_watched();
            let trains = port.recv(queues, &mut |train| hooks.receive(train, &mut deliver));
            hooks.send_bounced(&mut **port);
            trains
        } else {
            port.recv(queues, &mut deliver)
        };
        if hooks.next_due_ns().is_some() {
            hooks.release(now.0, &mut **port, &mut deliver);
        }
        tables.end_of_batch(now);
        trains
    }

    /// Takes a train that another process of this host has handed over.
    pub(crate) fn receive_forwarded(&mut self, now: Instant, train: &RxTrain<'_>) {
        let Core { port, hooks, tables } = self;
        hooks.receive(train, &mut |train| tables.receive_train(now, train));
        hooks.send_bounced(&mut **port);
        tables.end_of_batch(now);
    }
}

impl Tables {
    /// One GRO train: packets of equal size (the last may be shorter) from one sender to one address.
    pub(crate) fn receive_train(&mut self, now: Instant, train: &RxTrain<'_>) {
        let from = PacketSource {
            src: Gid::from(train.src),
            dst: Gid::from(train.dst),
            tos: train.tos,
            ttl: train.ttl,
        };
        if train.queue == RxQueue::Ring {
            for bytes in train.packets() {
                match Packet::parse(bytes) {
                    Ok(packet) => self.receive_packet(now, &packet, bytes, &from, train),
                    Err(reason) => self.count(reason),
                }
            }
            return;
        }
        let Some(icrc) = train.icrc_header() else { return self.count(DropReason::NotForUs) };
        let mut expected_id = train.ip_id.unwrap_or(0);
        for bytes in train.packets() {
            let packet = match Packet::parse(bytes) {
                Ok(packet) => packet,
                Err(reason) => {
                    self.count(reason);
                    continue;
                }
            };
            match icrc.verify(expected_id, bytes) {
                Ok(id) if train.ip_id.is_none() || id == expected_id => expected_id = id.wrapping_add(1),
                Ok(_) => {
                    self.count(DropReason::BadIcrc);
                    expected_id = expected_id.wrapping_add(1);
                    continue;
                }
                Err(reason) => {
                    self.count(reason);
                    continue;
                }
            }
            self.receive_packet(now, &packet, bytes, &from, train);
        }
    }

    #[inline]
    fn receive_packet(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        bytes: &[u8],
        from: &PacketSource,
        train: &RxTrain<'_>,
    ) {
        let qpn = packet.bth.dest_qp;
        let slot = (qpn.value() >> 16) as u8;
        if slot == self.slot && qpn != Qpn::GSI {
            return self.deliver(now, qpn.value() as u16, packet, from);
        }
        // A ring is for the connections of one process; and without an ICRC nothing could be handed on.
        if train.queue == RxQueue::Ring {
            return self.count(DropReason::NotForUs);
        }
        match qpn {
            Qpn::GSI => self.receive_mad(packet, bytes, train),
            Qpn::MULTICAST => self.receive_multicast(now, packet, from),
            _ => self.misroute(slot, bytes, train),
        }
    }

    /// Gives a packet to a queue pair of this process.
    #[inline]
    pub(crate) fn deliver(&mut self, now: Instant, index: u16, packet: &Packet<'_>, from: &PacketSource) {
        let Self { qps, srqs, mrs, reorder, slot, .. } = self;
        let Some(entry) = qps.get_mut(usize::from(index)).and_then(Option::as_deref_mut) else {
            return self.count(DropReason::UnknownQp);
        };
        let srqs = ScopedSrqs { srqs, slot: *slot, scope: entry.srqs };
        let result = entry.qp.handle_packet(now, packet, from, mrs, srqs, reorder);
        if !entry.touched {
            entry.touched = true;
            self.touched.push(index);
        }
        if let Err(reason) = result {
            if reason == DropReason::NoSuchSrq {
                self.tell_of_foreign_queue(packet);
            }
            self.count(reason);
        }
    }

    /// Programs made for hardware, where processes share an XRC domain, would wait for ever without a word.
    #[cold]
    fn tell_of_foreign_queue(&mut self, packet: &Packet<'_>) {
        let Some(Xrceth { srqn }) = packet.xrceth() else { return };
        if (srqn >> 16) as u8 != self.slot && !std::mem::replace(&mut self.told_of_foreign_queue, true) {
            notice(format_args!(
                "a message for XRC shared receive queue {srqn:#08x} was refused: this process has none of that number, and \
                 XRC queue pairs reach the queues of their own process only"
            ));
        }
    }

    /// Acknowledgements become due once per batch; completions are delivered.
    pub(crate) fn end_of_batch(&mut self, now: Instant) {
        while let Some(index) = self.touched.pop() {
            if let Some(entry) = self.qp_mut(index) {
                entry.touched = false;
                entry.qp.end_of_batch(now);
                self.settle(now, index);
            }
        }
    }

    /// A MAD is a UD SEND Only of exactly 256 bytes with the GSI Q_Key (rdma-core and kernel agree).
    fn receive_mad(&mut self, packet: &Packet<'_>, raw: &[u8], train: &RxTrain<'_>) {
        let row = packet.row();
        let Some(deth) = packet.deth() else { return self.count(DropReason::WrongService) };
        if row.service != Service::Ud || row.operation != Operation::Send {
            return self.count(DropReason::WrongService);
        }
        if !packet.bth.p_key.matches(PKey::DEFAULT) {
            return self.count(DropReason::BadPKey);
        }
        if deth.q_key != QKey::GSI {
            return self.count(DropReason::BadQKey);
        }
        let Ok(bytes) = <[u8; wire::mad::MAD_LEN]>::try_from(packet.payload()) else {
            return self.count(DropReason::BadMad);
        };
        if self.mads.len() < MADS_MAX {
            self.mads.push(Mad { bytes, packet: OwnedPacket::new(train, raw) });
        }
    }

    /// A train is steered by its first packet, so a packet of another process can arrive here.
    fn misroute(&mut self, slot: u8, bytes: &[u8], train: &RxTrain<'_>) {
        if self.misrouted.len() >= MISROUTED_MAX {
            return self.count(DropReason::QueueFull);
        }
        self.misrouted.push((slot, OwnedPacket::new(train, bytes)));
    }

    #[inline]
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }
}
