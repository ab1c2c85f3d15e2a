//! What happened on every connection of a capture, and what went wrong.
//!
//! An onlooker's view: nothing is known but what passed by, from whichever packet on the capture begins. Packets are fed in
//! their order; memory is bounded by the number of connections, not of packets. `request` follows requests, `answer`
//! what the responder says to them, `handshake` the connection manager, `finding` holds what went wrong.

mod answer;
mod command;
pub mod finding;
mod half;
mod handshake;
mod histogram;
mod keys;
mod request;
mod summary;
mod verdict;
mod window;

use std::collections::HashMap;

use wire::capture::{IcrcCheck, NotRoce, Seen};
use wire::{DropReason, Operation, Packet, Qpn, Service};

pub(super) use command::{AnalyseArgs, run, with_progress};
pub use finding::{At, Finding, Kind};
pub use half::{Counts, Half, Key, Message};
pub use histogram::Histogram;
pub use keys::{Access, Right};
pub use verdict::Verdict;

use super::source::Record;
use finding::{Findings, whose};
use handshake::Handshakes;

/// Directions followed; a capture with more is cut, and says so.
const HALVES_MAX: usize = 1 << 16;
/// Congestion signals that make a finding; fewer are only counted.
const CONGESTION_MIN: u64 = 1;

/// The bits of a P_Key that name the partition; the highest is the membership.
const PARTITION: u16 = 0x7fff;

/// The state of an analysis.
#[derive(Default)]
pub struct Analysis {
    halves: Vec<Half>,
    index: HashMap<Key, usize>,
    /// Where the latest packets were: a capture is mostly a few busy connections.
    recent: [Option<(Key, usize)>; 2],
    handshakes: Handshakes,
    findings: Findings,
    /// Messages completed since the last look.
    done: Vec<(usize, Message, At)>,
    collect: bool,
    /// The direction of the latest packet.
    current: Option<usize>,
    totals: Totals,
}

/// Numbers of the whole capture.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Packets of any kind.
    pub packets: u64,
    /// RoCEv2 packets.
    pub roce: u64,
    /// Bytes of RoCEv2 packets on the wire, from the link layer on.
    pub roce_bytes: u64,
    /// Packets whose invariant CRC could not be checked: the capture holds only their front.
    pub cut: u64,
    /// First packet.
    pub first: At,
    /// Last packet.
    pub last: At,
    /// Directions beyond the limit: packets that were not followed.
    pub not_followed: u64,
    /// Packets seen at a second place of the capture.
    pub seen_twice: u64,
    /// Packets the capture lost, by its own account.
    pub capture_drops: u64,
}

impl Analysis {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Analysis::new`], keeping completed messages for [`Analysis::take_messages`].
    #[must_use]
    pub fn with_messages() -> Self {
        Self { collect: true, ..Self::default() }
    }

    /// The next packet.
    pub fn feed(&mut self, record: &Record<'_>, seen: &Result<Seen<'_>, NotRoce>) {
        let icrc = seen.as_ref().map_or(IcrcCheck::Cut, Seen::icrc);
        self.feed_checked(record, seen, icrc);
    }

    /// The next packet, whose invariant CRC was looked at before.
    pub fn feed_checked(&mut self, record: &Record<'_>, seen: &Result<Seen<'_>, NotRoce>, icrc: IcrcCheck) {
        let at = At { number: record.number, ns: record.time_ns };
        if self.totals.packets == 0 {
            self.totals.first = at;
        }
        self.totals.last = at;
        self.totals.packets += 1;
        self.current = None;
        let Ok(seen) = seen else { return };
        self.totals.roce += 1;
        self.totals.roce_bytes += record.original_len as u64;
        let packet = match &seen.packet {
            Ok(packet) => packet,
            Err(reason) => {
                let why = match reason {
                    DropReason::TooShort => "it is too short for its headers",
                    DropReason::UnknownOpcode => "no operation has its opcode",
                    DropReason::BadTver => "its transport header is of another version",
                    other => other.name(),
                };
                let text = format!("A packet makes no sense: {why}. Its receiver drops it silently.");
                self.find(Kind::Malformed, at, at.number, whose(seen), text);
                return;
            }
        };
        if !seen.is_whole() && record.data.len() >= record.original_len {
            let (there, len) = (seen.udp_payload.len(), seen.udp_payload_len);
            let text = format!(
                "A packet was cut on its way: its headers promise {len} bytes behind the UDP header, and {there} are there. Its receiver \
                 drops it silently, so this counts as lost."
            );
            self.find(Kind::Malformed, at, at.number, whose(seen), text);
            return;
        }
        if !self.intact(at, seen, packet, icrc) {
            return;
        }
        let place = seen.link.ifindex.unwrap_or(record.interface as u32);
        match packet.row().service {
            _ if packet.bth.dest_qp == Qpn::GSI => self.handshakes.feed(at, seen, packet, &mut self.findings),
            Service::Ud => self.datagram(at, seen, packet),
            Service::Cnp => {
                if let Some(half) = self.half(at, seen, Service::Rc) {
                    self.halves[half].counts.cnps += 1;
                }
            }
            service => {
                let Some(half) = self.half(at, seen, service) else { return };
                self.count(half, at, seen);
                if packet.row().is_response() {
                    self.answer(half, at, seen, packet);
                } else {
                    self.request(half, at, seen, packet, place);
                }
            }
        }
    }

    /// Whether the packet reaches its receiver's transport; a damaged one does not.
    fn intact(&mut self, at: At, seen: &Seen<'_>, packet: &Packet<'_>, icrc: IcrcCheck) -> bool {
        match icrc {
            IcrcCheck::Good => true,
            IcrcCheck::Cut => {
                self.totals.cut += 1;
                true
            }
            // Linux from 6.3 on sends FLUSH with a CRC that covers its headers twice, and accepts it so.
            IcrcCheck::Bad { .. } if packet.row().operation == Operation::Flush => true,
            IcrcCheck::Bad { want } => {
                let text = format!(
                    "A packet is damaged: its invariant CRC should be {:#010x}. The receiver drops it silently, so this \
                     counts as lost.",
                    want.swap_bytes()
                );
                self.find(Kind::BadIcrc, at, at.number, whose(seen), text);
                false
            }
        }
    }

    fn find(&mut self, kind: Kind, at: At, shown_by: u64, whose: String, text: String) -> Option<usize> {
        self.findings.add(Finding { kind, at, shown_by, whose, text, count: 1 })
    }

    /// The direction a packet belongs to.
    fn half(&mut self, at: At, seen: &Seen<'_>, service: Service) -> Option<usize> {
        let key = Key { src: seen.ip.src(), dst: seen.ip.dst(), qp: seen.bth?.dest_qp };
        if let Some((_, index)) = self.recent.iter().flatten().find(|(recent, _)| *recent == key) {
            return Some(*index);
        }
        let index = match self.index.get(&key) {
            Some(index) => *index,
            None if self.halves.len() >= HALVES_MAX => {
                self.totals.not_followed += 1;
                return None;
            }
            None => {
                let index = self.halves.len();
                self.halves.push(Half::new(key, service, seen.udp.src_port, at));
                self.index.insert(key, index);
                self.pair_by_handshake(index);
                index
            }
        };
        self.recent = [Some((key, index)), self.recent[0]];
        Some(index)
    }

    fn count(&mut self, half: usize, at: At, seen: &Seen<'_>) {
        self.current = Some(half);
        if let Some(bth) = seen.bth {
            self.check_p_key(half, at, bth.p_key.0 & PARTITION);
        }
        let half = &mut self.halves[half];
        half.last = at;
        half.counts.packets += 1;
        half.counts.bytes += seen.payload_len() as u64;
        half.counts.ce += u64::from(seen.ecn() == 3);
    }

    /// Both ends of a connection are of one partition.
    fn check_p_key(&mut self, index: usize, at: At, key: u16) {
        let half = &mut self.halves[index];
        let (known, since) = *half.p_key.get_or_insert((key, at));
        if known == key || half.wrong_p_key {
            return;
        }
        half.wrong_p_key = true;
        let whose = half.name();
        let text = format!(
            "Packet {} is of the partition {key:#06x} (P_Key without its highest bit), while packet {} says {known:#06x} for this \
             connection. A queue pair has one; it drops packets of others silently.",
            at.number, since.number
        );
        self.find(Kind::WrongKey, at, at.number, whose, text);
    }

    /// Joins both directions of a connection whose handshake was seen.
    fn pair_by_handshake(&mut self, index: usize) {
        let key = self.halves[index].key;
        let Some(connection) = self.handshakes.connection(key.dst, key.qp) else { return };
        self.halves[index].path_mtu = connection.path_mtu;
        self.halves[index].p_key = connection.p_key;
        let other = Key { src: key.dst, dst: key.src, qp: connection.peer_qp };
        if let Some(peer) = self.index.get(&other).copied() {
            self.pair(index, peer);
        }
    }

    fn pair(&mut self, a: usize, b: usize) {
        self.halves[a].peer = Some(b);
        self.halves[b].peer = Some(a);
        if let (Some(key), Some((other, at))) = (self.halves[a].p_key, self.halves[b].p_key) {
            self.halves[b].p_key = Some(key);
            self.check_p_key(b, at, other);
        }
        let mtu = self.halves[a].path_mtu.or(self.halves[b].path_mtu);
        self.halves[a].path_mtu = mtu;
        self.halves[b].path_mtu = mtu;
    }

    /// A datagram: one message, no answer.
    fn datagram(&mut self, at: At, seen: &Seen<'_>, packet: &Packet<'_>) {
        let Some(index) = self.half(at, seen, Service::Ud) else { return };
        self.count(index, at, seen);
        let half = &mut self.halves[index];
        half.last_request = at;
        let bytes = seen.payload_len() as u64;
        half.size(bytes);
        half.counts.message_bytes += bytes;
        match half.counts.messages.first_mut() {
            Some((_, count)) => *count += 1,
            None => half.counts.messages.push((packet.row().operation, 1)),
        }
        let Some(deth) = packet.deth() else { return };
        match half.q_key {
            None => half.q_key = Some(deth.q_key.0),
            Some(key) if key != deth.q_key.0 && !half.wrong_key => {
                half.wrong_key = true;
                let (first, whose) = (half.first, half.name());
                let text = format!(
                    "Datagrams to one queue pair carry different Q_Keys: {key:#010x} in packet {}, {} in packet {}. A queue \
                     pair has one; it drops the others silently.",
                    first.number, deth.q_key, at.number
                );
                self.find(Kind::WrongKey, first, at.number, whose, text);
            }
            Some(_) => {}
        }
    }

    /// Messages completed since the last call: direction, message, and the packet that completed it.
    pub fn take_messages(&mut self) -> Vec<(usize, Message, At)> {
        std::mem::take(&mut self.done)
    }

    /// The directions seen so far.
    #[must_use]
    pub fn halves(&self) -> &[Half] {
        &self.halves
    }

    /// The direction of the latest packet, if that was of a queue pair other than the connection manager's.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    /// Numbers of the whole capture so far.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The end of the capture, which lost `capture_drops` packets by its own account, and left others out on purpose if `left_out`
    /// says so.
    ///
    /// What is missing then may be missing from the capture only: nothing is concluded from it.
    #[must_use]
    pub fn finish(mut self, capture_drops: u64, left_out: Option<&str>) -> Verdict {
        self.totals.capture_drops = capture_drops;
        for index in 0..self.halves.len() {
            self.conclude(index);
        }
        self.handshakes.finish(&mut self.findings);
        let why = match (left_out, capture_drops) {
            (None, 0) => None,
            (None, drops) => Some(format!("Whoever captured this lost {drops} packets")),
            (Some(what), 0) => Some(format!("Whoever captured this left packets out on purpose ({what})")),
            (Some(what), drops) => Some(format!(
                "Whoever captured this left packets out on purpose ({what}), and lost {drops} more"
            )),
        };
        if let Some(why) = why {
            let doubtful = match self.findings.retract_losses() {
                0 => String::new(),
                1 => " One finding of that kind is not listed.".to_owned(),
                n => format!(" {n} findings of that kind are not listed."),
            };
            let text = format!("{why}: what looks lost may only be missing from the capture.{doubtful}");
            self.find(Kind::CaptureLoss, self.totals.first, 0, "the capture".to_owned(), text);
        }
        let (findings, unlisted) = self.findings.sorted();
        Verdict { findings, unlisted, halves: self.halves, totals: self.totals, connections: self.handshakes }
    }

    /// What the end of the capture says about a direction.
    fn conclude(&mut self, index: usize) {
        self.conclude_requests(index);
        let half = &self.halves[index];
        let (ce, cnps) = (half.counts.ce, half.counts.cnps);
        if ce + cnps >= CONGESTION_MIN {
            let (first, whose) = (half.first, half.name());
            let text = if cnps > 0 {
                format!(
                    "{} receives {cnps} congestion notifications for its queue pair {}: what it sends meets a full queue.",
                    half.key.dst, half.key.qp
                )
            } else {
                format!("Routers marked {ce} of {} packets: they met a full queue.", half.counts.packets)
            };
            self.find(Kind::Congestion, first, first.number, whose, text);
        }
    }
}
