//! Taps: copies of the packets that come in and leave, for a reader outside the process ('roxie capture -p').
//!
//! What is seen is the wire's side of the hooks: packets that come in before the ingress hook has judged them, packets that
//! leave after the egress hook has. A packet of a burst has the identification and the ICRC with which the burst will be cut.
//! A tap belongs to a connection to the control socket and goes with it.

use std::net::IpAddr;

use wire::capture::Conditions;
use wire::icrc::ICRC_LEN;
use wire::{IcrcHeader, Packet, Qpn};

use super::ring::FrameRing;
use super::{HookError, HookPoint, Hooks, KeptFrame};
use crate::port::{FlowId, FlowKey, Headers, Port, RxTrain, icrc_header};
use crate::sys::now_ns;

/// Which packets a tap copies, and how much of each.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TapFilter {
    /// Bytes of each frame at most, from the Ethernet header on; 0 for all.
    pub snap_len: u32,
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

/// What a tap has copied since it was asked last.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tapped {
    /// The oldest first.
    pub frames: Vec<KeptFrame>,
    /// Packets that found no room, since the tap began.
    pub lost: u64,
}

/// All taps of an engine.
#[derive(Debug, Default)]
pub(super) struct Taps {
    taps: Vec<Tap>,
    /// The flow of the packets that leave now.
    flow: Option<(FlowId, Outer)>,
    /// The queue pair that sends now, if one does.
    pub(super) sender: Option<Qpn>,
}

#[derive(Debug)]
struct Tap {
    client: u64,
    filter: TapFilter,
    ring: FrameRing,
    lost: u64,
    /// Packets, for a sample.
    counted: u64,
}

/// What the packets of a flow or a train have in common.
#[derive(Clone, Copy, Debug)]
struct Outer {
    headers: Headers,
    icrc: IcrcHeader,
}

/// A packet at the tap.
struct Passing<'a> {
    point: HookPoint,
    outer: &'a Outer,
    /// IPv4 identification.
    id: u16,
    /// BTH to pad.
    body: &'a [u8],
    /// As it came in; not made yet on the way out.
    icrc: Option<[u8; ICRC_LEN]>,
    /// The queue pair here that sends it.
    sender: Option<Qpn>,
}

/// Taps at once: each has a ring.
const TAPS_MAX: usize = 4;
/// Bytes that wait for a reader: 6 ms of what one engine sends.
const BYTES_MAX: usize = 16 << 20;

impl Hooks {
    /// Begins a tap for a connection, in place of the one it has.
    ///
    /// # Errors
    /// [`HookError::Tapped`] if there are enough.
    pub(crate) fn tap(&mut self, client: u64, filter: TapFilter) -> Result<(), HookError> {
        self.untap(client);
        if self.taps.taps.len() == TAPS_MAX {
            return Err(HookError::Tapped { taps: TAPS_MAX });
        }
        self.taps.taps.push(Tap { client, filter, ring: FrameRing::new(BYTES_MAX), lost: 0, counted: 0 });
        self.watch();
        Ok(())
    }

    /// Ends the tap of a connection, if it has one.
    pub(crate) fn untap(&mut self, client: u64) {
        self.taps.taps.retain(|tap| tap.client != client);
        self.watch();
    }

    /// What a connection's tap has copied, no more than `bytes_max` bytes.
    ///
    /// # Errors
    /// [`HookError::NoTap`].
    pub(crate) fn read_tap(&mut self, client: u64, bytes_max: usize) -> Result<Tapped, HookError> {
        let tap = self.taps.taps.iter_mut().find(|tap| tap.client == client).ok_or(HookError::NoTap)?;
        Ok(Tapped { frames: tap.ring.take(bytes_max), lost: tap.lost })
    }

    /// Connections that have a tap.
    pub(crate) fn tap_clients(&self) -> Vec<u64> {
        self.taps.taps.iter().map(|tap| tap.client).collect()
    }

    /// What leaves from now on is this queue pair's, or nobody's.
    #[inline]
    pub(crate) fn set_sender(&mut self, qpn: Option<Qpn>) {
        self.taps.sender = qpn;
    }

    /// Copies a train that has come in.
    #[cold]
    pub(super) fn tap_incoming(&mut self, train: &RxTrain<'_>) {
        let key = train.flow_key();
        let Some(mut outer) = Outer::new(&key, train.src_port, train.dst_port) else { return };
        if let Some([src, dst]) = train.macs {
            outer.headers.set_macs(src.0, dst.0);
        }
        let time_ns = now_ns();
        let mut id = train.ip_id.unwrap_or(0);
        for bytes in train.packets() {
            let Some((body, icrc)) = bytes.split_last_chunk::<ICRC_LEN>() else { continue };
            // What comes here by mistake is handed over, and seen where it belongs.
            let slot = self.slot;
            let is_ours =
                |qpn: Qpn| qpn == Qpn::GSI || qpn == Qpn::MULTICAST || (qpn.value() >> 16) as u8 == slot;
            if dest_qp(body).is_none_or(is_ours) {
                if train.ip_id.is_none() {
                    // The socket does not tell; the ICRC does. The expected one stands in a packet that is damaged.
                    id = outer.icrc.verify(id, bytes).unwrap_or(id);
                }
                let (point, icrc) = (HookPoint::Ingress, Some(*icrc));
                let passing = Passing { point, outer: &outer, id, body, icrc, sender: None };
                self.taps.copy(time_ns, &passing);
            }
            id = id.wrapping_add(1);
        }
    }

    /// Copies the packet in the port's slot, which is to be committed next.
    #[cold]
    fn tap_outgoing(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        let outer = match self.taps.flow {
            Some((known, outer)) if known == flow => outer,
            _ => {
                let Some(outer) = port.headers(flow).and_then(Outer::of) else { return };
                self.taps.flow = Some((flow, outer));
                outer
            }
        };
        let id = port.identification(flow, len);
        let Some(body) = port.tx_slot().get(..len) else { return };
        let (point, sender) = (HookPoint::Egress, self.taps.sender);
        self.taps.copy(now_ns(), &Passing { point, outer: &outer, id, body, icrc: None, sender });
    }

    /// The packet at the start of the port's slot leaves: nothing comes behind this.
    #[inline]
    pub(super) fn leave(&mut self, port: &mut dyn Port, flow: FlowId, len: usize) {
        if !self.taps.is_empty() {
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

    /// The packets that follow may be of another flow.
    #[inline]
    pub(super) fn change_flow(&mut self) {
        self.flow = None;
    }

    fn copy(&mut self, time_ns: u64, packet: &Passing<'_>) {
        for tap in &mut self.taps {
            if !tap.is_next() || !packet.is_wanted(&tap.filter) {
                continue;
            }
            let len = packet.outer.headers.len() + packet.body.len() + ICRC_LEN;
            let snap_len = match tap.filter.snap_len {
                0 => len,
                snap_len => len.min(snap_len as usize),
            };
            if !tap.ring.has_room(snap_len) {
                tap.lost += 1;
                continue;
            }
            let (point, len) = (packet.point, len as u32);
            tap.ring.push(KeptFrame { time_ns, point, key: 0, len, bytes: packet.front(snap_len) });
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

    /// The first `len` bytes of the frame.
    fn front(&self, len: usize) -> Vec<u8> {
        let headers_len = self.outer.headers.len();
        let mut bytes = Vec::with_capacity(len.max(headers_len));
        bytes.resize(headers_len, 0);
        self.outer.headers.emit_with_id(&mut bytes, self.body.len() + ICRC_LEN, self.id);
        let payload_len = len.saturating_sub(headers_len);
        bytes.extend_from_slice(&self.body[..payload_len.min(self.body.len())]);
        let icrc_len = payload_len.saturating_sub(self.body.len());
        if icrc_len > 0 {
            let made = || self.outer.icrc.icrc(self.id, self.body).to_le_bytes();
            bytes.extend_from_slice(&self.icrc.unwrap_or_else(made)[..icrc_len]);
        }
        bytes.truncate(len);
        bytes
    }
}

/// The queue pair that a packet is for.
fn dest_qp(body: &[u8]) -> Option<Qpn> {
    let bth = body.first_chunk::<{ wire::Bth::LEN }>()?;
    Some(wire::Bth::parse(bth).dest_qp)
}
