//! Taps: copies of received and sent packets, for a reader outside the process (`roxie capture -p`).
//!
//! A tap is on the wire's side of the hooks: it sees received packets before the ingress hook, and sent
//! packets after the egress hook. A packet of a burst has the identification and the ICRC that it will
//! have after segmentation. A request or probe, which any device of the domain may receive, is copied by the
//! one that handles it, as the ingress hook has left it. A tap belongs to a connection to the control socket
//! and ends with it. Its records (`copies.rs`) are in memory that the reader shares: unread records survive
//! the end of the process, and records lost to a slow reader are counted.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use bpf::XdpAction;
use transport::cm::is_for_one_process;
use transport::numbering::slot_of;
use wire::capture::Conditions;
use wire::icrc::ICRC_LEN;
use wire::{Packet, Qpn};

use super::copies::{Copies, Outer, Passing};
use super::{HookError, HookPoint, Hooks, Verdict};
use roxie::port::{FlowId, FlowKey, Headers, Port, RxBatch, icrc_header};
use sys::{RecordWriter, page_size};

/// Which packets a tap copies, and how many bytes of each.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TapFilter {
    /// Most bytes of each frame, from the Ethernet header on, but always the headers before the BTH; 0
    /// for all.
    pub snap_len: u32,
    /// Bytes of unread records: a power of two from 4 KiB to 1 GiB, to which other numbers are rounded; 0
    /// for 16 MiB.
    pub room: u32,
    /// Only packets from or to one of these addresses; all if empty.
    pub hosts: Vec<IpAddr>,
    /// Only packets to or from one of these queue pairs, and management datagrams; all if empty. A peer's
    /// number selects the connections to it that exist when the tap starts.
    pub qps: Vec<Qpn>,
    /// Only packets that may meet these, see [`Conditions::may_admit`].
    pub conditions: Conditions,
    /// Only every n-th packet, counted before all other conditions; 0 and 1 for all.
    pub sample: u32,
    /// Also packets that a hook does not pass, with the verdict. Of received ones this is a second copy.
    pub verdicts: bool,
}

impl TapFilter {
    /// Allocates the memory for the records; returns its writer and the descriptor for the reader.
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
    /// The flow of the packets that are being sent.
    flow: Option<(FlowId, Outer)>,
    /// The local queue pair that is sending, if one is.
    pub(super) sender: Option<Qpn>,
    /// Number of packets of this flow that were not copied because no tap had room; set with the first
    /// such packet, after which the others are only counted.
    uncopied: Option<u64>,
    /// The reader of a recording is slow: packets wait.
    pub(super) is_waiting: bool,
}

#[derive(Debug)]
struct Tap {
    client: u64,
    filter: TapFilter,
    /// Every packet is wanted.
    wants_all: bool,
    copies: Copies,
    /// Number of packets seen, for sampling.
    counted: u64,
}

/// Most taps at once: each has memory of its own.
const TAPS_MAX: usize = 4;
/// Default bytes of unread records: 6 ms of what one engine sends.
const ROOM: u32 = 16 << 20;
const ROOM_MIN: u32 = 4 << 10;
const ROOM_MAX: u32 = 1 << 30;
/// The tap of `roxie run --capture`; connections are counted from 1.
const RECORDING: u64 = u64::MAX;

/// The packets of a received batch that are copied at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Copied {
    /// Requests and probes, by the device that handles them.
    Requests,
    /// All others, when they arrive.
    Others,
}

impl Copied {
    fn has(self, is_request: bool) -> bool {
        is_request == (self == Copied::Requests)
    }
}

impl Hooks {
    /// Starts a tap for a connection, instead of the one it has.
    ///
    /// # Errors
    /// [`HookError::Tapped`] if there are too many.
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
        let copies = Copies::new(copies, filter.snap_len as usize, self.runtime.clone());
        let copies = if client == RECORDING { copies.complete() } else { copies };
        self.taps.taps.push(Tap { client, filter, wants_all, copies, counted: 0 });
        self.update_active();
        Ok(())
    }

    /// Starts a tap for the reader of the whole command (`recording.rs`). While that reader is slow, the
    /// engine neither receives nor sends.
    ///
    /// # Errors
    /// As [`tap`](Self::tap).
    pub(crate) fn record(&mut self, filter: TapFilter, copies: RecordWriter) -> Result<(), HookError> {
        self.tap(RECORDING, filter, copies)
    }

    /// Drops all taps, in a forked child.
    pub(crate) fn forget_taps(&mut self) {
        self.taps.taps.clear();
        self.taps.is_waiting = false;
        self.update_active();
    }

    /// Ends the tap of a connection, if it has one.
    pub(crate) fn untap(&mut self, client: u64) {
        self.taps.taps.retain(|tap| tap.client != client);
        self.update_active();
    }

    /// Sets the queue pair that sends the next packets, if any.
    #[inline]
    pub(crate) fn set_sender(&mut self, qpn: Option<Qpn>) {
        self.taps.sender = qpn;
    }

    /// Copies a request that this device handles, or that is lost here. Other packets were copied when they
    /// arrived.
    pub(crate) fn tap_request(&mut self, packet: &RxBatch<'_>) {
        if !self.taps.is_empty() {
            self.tap_incoming(packet, Copied::Requests);
        }
    }

    /// Copies some packets of a received batch.
    #[cold]
    pub(super) fn tap_incoming(&mut self, batch: &RxBatch<'_>, copied: Copied) {
        let key = batch.flow_key();
        let Some(mut outer) = Outer::new(&key, batch.src_port, batch.dst_port) else { return };
        if let Some([src, dst]) = batch.macs {
            outer.headers.set_macs(src.0, dst.0);
        }
        // Misrouted packets are handed over, and copied by the process they are for.
        let slots = &self.slots;
        let is_ours = |body: &[u8]| {
            let is_own = |qpn: Qpn| slots.contains(&slot_of(qpn));
            dest_qp(body).is_none_or(|qpn| qpn == Qpn::GSI || qpn == Qpn::MULTICAST || is_own(qpn))
        };
        if self.taps.are_full(batch.segment) {
            let bodies = batch.packets().filter_map(|bytes| bytes.split_last_chunk::<ICRC_LEN>());
            let is_chosen = |body: &[u8]| is_ours(body) && copied.has(is_request(body));
            return self.taps.lose(bodies.filter(|(body, _)| is_chosen(body)).count() as u64);
        }
        let is_chosen = |bytes, body| copied.has(is_request(body) && outer.icrc.verify(0, bytes).is_ok());
        let first_id = outer.first_id(batch, || self.taps.have_room(batch.segment));
        let mut id = first_id.unwrap_or(0);
        for bytes in batch.packets() {
            let Some((body, icrc)) = bytes.split_last_chunk::<ICRC_LEN>() else { continue };
            if is_ours(body) && is_chosen(bytes, body) {
                if first_id.is_none() {
                    // A damaged packet is shown with the expected identification.
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
            self.taps.uncopied = Some(1);
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

    /// Copies a packet that a hook does not pass. `body` is BTH to pad, `icrc` that of a received packet.
    #[cold]
    pub(super) fn tap_verdict(
        &mut self,
        point: HookPoint,
        verdict: Verdict,
        body: &[u8],
        icrc: Option<[u8; ICRC_LEN]>,
    ) {
        let action = match verdict {
            Verdict::Pass => return,
            Verdict::Aborted | Verdict::Invalid => XdpAction::Aborted,
            Verdict::Drop => XdpAction::Drop,
            Verdict::Tx => XdpAction::Tx,
            Verdict::Redirect(_) => XdpAction::Redirect,
        };
        let Some(outer) = self.scratch.headers().copied().and_then(Outer::of) else { return };
        let sender = if point == HookPoint::Egress { self.taps.sender } else { None };
        let packet = Passing { point, outer: &outer, id: 0, body, icrc, sender };
        for tap in self.taps.taps.iter_mut().filter(|tap| tap.filter.verdicts) {
            if tap.wants_all || packet.is_wanted(&tap.filter) {
                tap.copies.take_judged(&packet, action.number() as u8);
            }
        }
    }

    /// Commits the packet at the start of the port's slot; no later stage can change it.
    #[inline]
    pub(super) fn leave(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        if !self.taps.is_empty() && !self.taps.counts_as_uncopied() {
            self.tap_outgoing(port, flow, len);
        }
        port.tx_commit(flow, len);
    }
}

impl Taps {
    /// Whether another process reads copies, beside a recording.
    pub(super) fn has_clients(&self) -> bool {
        self.taps.iter().any(|tap| tap.client != RECORDING)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// Whether packets have to wait because the reader of a recording is slow.
    #[inline]
    pub(super) fn is_reader_slow(&mut self, now_ns: u64) -> bool {
        self.is_waiting = self.taps.iter_mut().any(|tap| tap.copies.is_reader_slow(now_ns));
        self.is_waiting
    }

    /// Whether a tap wants the packets that hooks do not pass.
    pub(super) fn want_verdicts(&self) -> bool {
        self.taps.iter().any(|tap| tap.filter.verdicts)
    }

    /// Announces that the next packets may belong to another flow, or that none follow for now.
    #[inline]
    pub(super) fn change_flow(&mut self) {
        self.flow = None;
        if let Some(packets) = self.uncopied.take() {
            self.lose(packets);
        }
        self.end_records();
    }

    /// Publishes the open records to the readers.
    #[inline]
    fn end_records(&mut self) {
        self.taps.iter_mut().for_each(|tap| tap.copies.end_record());
    }

    /// Whether any tap has room for a packet of `len` bytes.
    fn have_room(&self, len: usize) -> bool {
        self.taps.iter().any(|tap| tap.copies.have_room(len))
    }

    /// Whether no tap has room for a packet of `len` bytes, and all want every packet: then it need only
    /// be counted.
    fn are_full(&self, len: usize) -> bool {
        self.taps.iter().all(|tap| tap.wants_all && !tap.copies.have_room(len))
    }

    /// Counts packets as lost in all taps.
    fn lose(&mut self, packets: u64) {
        self.taps.iter_mut().for_each(|tap| tap.copies.lose(packets));
    }

    /// Counts a packet of a flow of which an earlier one was lost; false if none was.
    #[inline]
    pub(super) fn counts_as_uncopied(&mut self) -> bool {
        self.uncopied.as_mut().map(|packets| *packets += 1).is_some()
    }
}

/// Copies a packet to the taps that want it.
fn copy(taps: &mut [Tap], packet: &Passing<'_>) {
    for tap in taps {
        if tap.is_next() && (tap.wants_all || packet.is_wanted(&tap.filter)) {
            tap.copies.take(packet);
        } else {
            // A record holds consecutive packets only.
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

    /// Returns the identification of the first packet, if those of the others follow it, or if it is not
    /// needed.
    ///
    /// Sockets do not report it, but the ICRC reveals it, for which the complete packet is read. If the
    /// last packet has the expected one, so have those between.
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

    /// Returns the queue pair that a datagram names as its source.
    fn source_qp(&self) -> Option<Qpn> {
        let packet = Packet::parse_cut(self.body, self.body.len() + ICRC_LEN).ok()?;
        packet.deth().map(|deth| deth.src_qp)
    }
}

/// Returns the destination queue pair of a packet.
fn dest_qp(body: &[u8]) -> Option<Qpn> {
    let bth = body.first_chunk::<{ wire::Bth::LEN }>()?;
    Some(wire::Bth::parse(bth).dest_qp)
}

/// Whether a packet is a request or a probe that any device of the domain may receive, and that the transport
/// hands to connection management.
fn is_request(body: &[u8]) -> bool {
    if dest_qp(body) != Some(Qpn::GSI) {
        return false;
    }
    let packet = Packet::parse_cut(body, body.len() + ICRC_LEN).ok();
    packet.and_then(|packet| packet.mad().ok()).is_some_and(is_for_one_process)
}
