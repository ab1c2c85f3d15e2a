//! Taps: copies of the packets that come in and leave, for a reader outside the process ('roxie capture -p').
//!
//! What is seen is the wire's side of the hooks: packets that come in before the ingress hook has judged them, packets that
//! leave after the egress hook has. A packet of a burst has the identification and the ICRC with which the burst will be cut.
//! A tap belongs to a connection to the control socket and goes with it. Its copies (`copies.rs`) are in memory that the reader shares:
//! those that it has not read when the process ends are still there, and a reader that is too slow costs a count.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use wire::capture::Conditions;
use wire::icrc::ICRC_LEN;
use wire::{IcrcHeader, Packet, Qpn};

use super::copies::Copies;
use super::{HookError, HookPoint, Hooks};
use crate::port::{FlowId, FlowKey, Headers, Port, RxBatch, icrc_header};
use sys::{RecordWriter, page_size};

/// Which packets a tap copies, and how much of each.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TapFilter {
    /// Bytes of each frame at most, from the Ethernet header on, but always the headers in front of the BTH; 0 for all.
    pub snap_len: u32,
    /// Bytes of copies that wait for the reader: a power of two from 4 KiB to 1 GiB, another number is rounded to one; 0 for 16 MiB.
    pub room: u32,
    /// Only from or to one of these addresses, if there are any.
    pub hosts: Vec<IpAddr>,
    /// Only to or from one of these queue pairs, if there are any, and management datagrams. A peer's number means the
    /// connections to it that there are when the tap begins.
    pub qps: Vec<Qpn>,
    /// Only what may meet these, as [`Conditions::may_admit`] has it.
    pub conditions: Conditions,
    /// Only the first of so many packets, counted before all other conditions; 0 and 1 for all.
    pub sample: u32,
}

impl TapFilter {
    /// Memory for the copies, and what their reader needs.
    ///
    /// # Errors
    /// [`HookError::NoMemory`].
    pub(crate) fn memory(&self) -> Result<(RecordWriter, OwnedFd), HookError> {
        let room = if self.room == 0 { ROOM } else { self.room };
        let room = room.clamp(ROOM_MIN.max(page_size() as u32), ROOM_MAX).next_power_of_two();
        RecordWriter::new(room as usize).map_err(HookError::NoMemory)
    }
}

/// All taps of an engine.
#[derive(Debug, Default)]
pub(super) struct Taps {
    taps: Vec<Tap>,
    /// The flow of the packets that leave now.
    flow: Option<(FlowId, Outer)>,
    /// The queue pair that sends now, if one does.
    pub(super) sender: Option<Qpn>,
    /// Packets of this flow that leave now and that nobody has room for, once there was one: the others are not looked at.
    passed_by: Option<u64>,
}

#[derive(Debug)]
struct Tap {
    client: u64,
    filter: TapFilter,
    /// Every packet is wanted.
    wants_all: bool,
    copies: Copies,
    /// Packets, for a sample.
    counted: u64,
}

/// What the packets of a flow or a batch have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    pub(super) headers: Headers,
    pub(super) icrc: IcrcHeader,
}

/// A packet at the tap.
pub(super) struct Passing<'a> {
    pub(super) point: HookPoint,
    pub(super) outer: &'a Outer,
    /// IPv4 identification.
    pub(super) id: u16,
    /// BTH to pad.
    pub(super) body: &'a [u8],
    /// As it came in; not made yet on the way out.
    pub(super) icrc: Option<[u8; ICRC_LEN]>,
    /// The queue pair here that sends it.
    sender: Option<Qpn>,
}

/// Taps at once: each has a ring.
const TAPS_MAX: usize = 4;
/// Bytes that wait for a reader, unless it asks for others: 6 ms of what one engine sends.
const ROOM: u32 = 16 << 20;
const ROOM_MIN: u32 = 4 << 10;
const ROOM_MAX: u32 = 1 << 30;

impl Hooks {
    /// Begins a tap for a connection, in place of the one it has.
    ///
    /// # Errors
    /// [`HookError::Tapped`] if there are enough.
    pub(crate) fn tap(
        &mut self,
        client: u64,
        filter: TapFilter,
        copies: RecordWriter,
    ) -> Result<(), HookError> {
        self.untap(client);
        if self.taps.taps.len() == TAPS_MAX {
            return Err(HookError::Tapped { taps: TAPS_MAX });
        }
        let wants_all = filter.hosts.is_empty() && filter.qps.is_empty() && filter.conditions.is_empty();
        let wants_all = wants_all && filter.sample <= 1;
        let copies = Copies::new(copies, filter.snap_len as usize);
        self.taps.taps.push(Tap { client, filter, wants_all, copies, counted: 0 });
        self.watch();
        Ok(())
    }

    /// Ends the tap of a connection, if it has one.
    pub(crate) fn untap(&mut self, client: u64) {
        self.taps.taps.retain(|tap| tap.client != client);
        self.watch();
    }

    /// What leaves from now on is this queue pair's, or nobody's.
    #[inline]
    pub(crate) fn set_sender(&mut self, qpn: Option<Qpn>) {
        self.taps.sender = qpn;
    }

    /// Copies a batch that has come in.
    #[cold]
    pub(super) fn tap_incoming(&mut self, batch: &RxBatch<'_>) {
        let key = batch.flow_key();
        let Some(mut outer) = Outer::new(&key, batch.src_port, batch.dst_port) else { return };
        if let Some([src, dst]) = batch.macs {
            outer.headers.set_macs(src.0, dst.0);
        }
        // What comes here by mistake is handed over, and seen where it belongs.
        let slot = self.slot;
        let is_ours = |body: &[u8]| {
            let is_own = |qpn: Qpn| (qpn.value() >> 16) as u8 == slot;
            dest_qp(body).is_none_or(|qpn| qpn == Qpn::GSI || qpn == Qpn::MULTICAST || is_own(qpn))
        };
        if self.taps.are_full(batch.segment) {
            let bodies = batch.packets().filter_map(|bytes| bytes.split_last_chunk::<ICRC_LEN>());
            return self.taps.lose(bodies.filter(|(body, _)| is_ours(body)).count() as u64);
        }
        let first_id = outer.first_id(batch, || self.taps.have_room(batch.segment));
        let mut id = first_id.unwrap_or(0);
        for bytes in batch.packets() {
            let Some((body, icrc)) = bytes.split_last_chunk::<ICRC_LEN>() else { continue };
            if is_ours(body) {
                if first_id.is_none() {
                    // The expected one stands in a packet that is damaged.
                    id = outer.icrc.verify(id, bytes).unwrap_or(id);
                }
                let (point, icrc) = (HookPoint::Ingress, Some(*icrc));
                copy(&mut self.taps.taps, &Passing { point, outer: &outer, id, body, icrc, sender: None });
            }
            id = id.wrapping_add(1);
        }
        self.taps.end_records();
    }

    /// Copies the packet in the port's slot, which is to be committed next.
    #[cold]
    fn tap_outgoing(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        if self.taps.are_full(len) {
            self.taps.passed_by = Some(1);
            return;
        }
        if self.taps.flow.is_none_or(|(known, _)| known != flow) {
            let Some(outer) = port.headers(flow).and_then(Outer::of) else { return };
            self.taps.change_flow();
            self.taps.flow = Some((flow, outer));
        }
        let Taps { taps, flow: Some((_, outer)), sender, .. } = &mut self.taps else { return };
        let id = port.identification(flow, len);
        let Some(body) = port.tx_slot().get(..len) else { return };
        copy(taps, &Passing { point: HookPoint::Egress, outer, id, body, icrc: None, sender: *sender });
    }

    /// The packet at the start of the port's slot leaves: nothing comes behind this.
    #[inline]
    pub(super) fn leave(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        if !self.taps.is_empty() && !self.taps.passes_by() {
            self.tap_outgoing(port, flow, len);
        }
        port.tx_commit(flow, len);
    }
}

impl Taps {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// The packets that follow may be of another flow, or none follow for now.
    #[inline]
    pub(super) fn change_flow(&mut self) {
        self.flow = None;
        if let Some(packets) = self.passed_by.take() {
            self.lose(packets);
        }
        self.end_records();
    }

    /// What was copied is there for readers.
    #[inline]
    fn end_records(&mut self) {
        self.taps.iter_mut().for_each(|tap| tap.copies.end_record());
    }

    /// Whether anybody has room for a packet of so many bytes.
    fn have_room(&self, len: usize) -> bool {
        self.taps.iter().any(|tap| tap.copies.have_room(len))
    }

    /// Whether nobody has room for a packet of so many bytes, and all want it whatever it is: then it need only be counted.
    fn are_full(&self, len: usize) -> bool {
        self.taps.iter().all(|tap| tap.wants_all && !tap.copies.have_room(len))
    }

    /// Counts packets that nobody has room for.
    fn lose(&mut self, packets: u64) {
        self.taps.iter_mut().for_each(|tap| tap.copies.lose(packets));
    }

    /// Counts a packet that leaves behind one of its flow that nobody had room for; false if there was none.
    #[inline]
    pub(super) fn passes_by(&mut self) -> bool {
        self.passed_by.as_mut().map(|packets| *packets += 1).is_some()
    }
}

/// Copies a packet for those who want it.
fn copy(taps: &mut [Tap], packet: &Passing<'_>) {
    for tap in taps {
        if tap.is_next() && (tap.wants_all || packet.is_wanted(&tap.filter)) {
            tap.copies.take(packet);
        } else {
            // Records hold packets that follow each other.
            tap.copies.end_record();
        }
    }
}

impl Tap {
    /// Whether the packet is in the sample.
    #[inline]
    fn is_next(&mut self) -> bool {
        let number = self.counted;
        self.counted += 1;
        number.is_multiple_of(u64::from(self.filter.sample.max(1)))
    }
}

impl Outer {
    fn new(key: &FlowKey, src_port: u16, dst_port: u16) -> Option<Outer> {
        Outer::of(Headers::new(key, src_port, dst_port)?)
    }

    fn of(headers: Headers) -> Option<Outer> {
        let (key, (src_port, dst_port)) = (headers.key(), headers.ports());
        let icrc = icrc_header(key.src, key.dst, src_port, dst_port)?.with_flush(key.flush_icrc);
        Some(Outer { headers, icrc })
    }

    /// The identification of the first packet, if those of the others follow it, or if nobody asks for it.
    ///
    /// Sockets do not tell; ICRCs do, which takes a look at the whole packet. If it is so of the last one, it is of those between.
    fn first_id(&self, batch: &RxBatch<'_>, is_asked_for: impl Fn() -> bool) -> Option<u16> {
        if batch.ip_id.is_some() || self.headers.key().src.is_ipv6() || !is_asked_for() {
            return Some(batch.ip_id.unwrap_or(0));
        }
        let mut packets = batch.packets();
        let behind = packets.len().saturating_sub(1) as u16;
        let first = self.icrc.verify(0, packets.next()?).ok()?;
        let last = first.wrapping_add(behind);
        packets.next_back().is_none_or(|bytes| self.icrc.verify(last, bytes) == Ok(last)).then_some(first)
    }
}

impl Passing<'_> {
    fn is_wanted(&self, filter: &TapFilter) -> bool {
        let key = self.outer.headers.key();
        let hosts = &filter.hosts;
        if !hosts.is_empty() && !hosts.iter().any(|host| *host == key.src || *host == key.dst) {
            return false;
        }
        let conditions = &filter.conditions;
        let len = self.body.len() + ICRC_LEN;
        if !conditions.is_empty() && !conditions.may_admit(self.body, len, key.tos & 3) {
            return false;
        }
        let wanted = |qpn: &Qpn| *qpn == Qpn::GSI || filter.qps.contains(qpn);
        filter.qps.is_empty()
            || self.sender.as_ref().is_some_and(wanted)
            || dest_qp(self.body).as_ref().is_some_and(wanted)
            || self.source_qp().as_ref().is_some_and(wanted)
    }

    /// The queue pair that a datagram names as its source.
    fn source_qp(&self) -> Option<Qpn> {
        let packet = Packet::parse_cut(self.body, self.body.len() + ICRC_LEN).ok()?;
        packet.deth().map(|deth| deth.src_qp)
    }
}

/// The queue pair that a packet is for.
fn dest_qp(body: &[u8]) -> Option<Qpn> {
    let bth = body.first_chunk::<{ wire::Bth::LEN }>()?;
    Some(wire::Bth::parse(bth).dest_qp)
}
