//! Follows every connection of a capture and names what went wrong.
//!
//! The analysis knows only the captured packets, and a capture may begin in the middle of a connection.
//! Packets are fed in order; memory is bounded by the number of connections, not of packets. `copies` removes
//! what was captured twice, `request` and `repeat` follow requests, `answer` the packets of responders,
//! `handshake` the connection manager, `sequence` and `pause` check what follows what. At the end, `conclude`
//! adds what never came, and `quality` says what the capture lacks.

mod acceptance;
mod answer;
mod conclude;
mod control;
mod copies;
mod device;
mod direction;
pub mod finding;
mod fragments;
mod handshake;
mod histogram;
mod keys;
mod messages;
mod numbering;
mod pause;
mod quality;
mod repeat;
mod request;
mod sequence;
mod summary;
mod times;
mod undecoded;
mod verdict;
mod window;

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::IpAddr;
use std::ops::ControlFlow;

use wire::capture::{IcrcCheck, NotRoce, Seen};
use wire::{Bth, Operation, Packet, Qpn, Service};

pub use direction::{Counts, Direction, Key, Message};
pub use finding::{At, Confidence, Finding, Kind};
pub use handshake::{Connection, Handshake, Handshakes};
pub use histogram::Histogram;
pub use keys::{Access, Right};
pub use quality::{Origin, Retake};
pub use undecoded::Undecoded;
pub use verdict::Verdict;

use crate::decode::{self, Decoded};
use crate::source::{Record, Source};
use control::Links;
use copies::{Copies, Point, Sighting};
use device::Peers;
use finding::{Findings, earliest, subject};
use fragments::Fragments;
use request::ip_id;
use times::{DUPLICATED_NS, SAME_ID_NS};

/// Directions followed; packets of further ones are counted in [`Totals::not_followed`].
const DIRECTIONS_MAX: usize = 1 << 16;
/// Descriptions of damage that the verdict names: a damaged place, and how much was skipped there.
const NOTES_MAX: usize = 2;
/// The bits of a P_Key that name the partition. The highest bit is the membership type.
const PARTITION: u16 = 0x7fff;

/// The state of an analysis.
#[derive(Default)]
pub struct Analysis {
    directions: Vec<Direction>,
    index: HashMap<Key, usize>,
    /// The number of directions by sender and receiver.
    alike: HashMap<(IpAddr, IpAddr), u32>,
    /// The two directions used last, a cache for `index`: most captures have few busy connections.
    recent: [Option<(Key, usize)>; 2],
    handshakes: Handshakes,
    peers: Peers,
    findings: Findings,
    /// Messages completed since the last [`Analysis::take_messages`].
    done: Vec<(usize, Message, At)>,
    collect: bool,
    /// The direction of the latest packet.
    current: Option<usize>,
    totals: Totals,
    copies: Copies,
    /// Where the latest RoCE packet was captured, and whether before.
    point: Point,
    sighting: Sighting,
    fragments: Fragments,
    links: Links,
    /// Time of the latest packet of each interface.
    clocks: Vec<u64>,
    /// Why the end of the file is missing.
    damage: Option<String>,
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
    /// Packets with an unchecked invariant CRC: their end was not captured.
    pub cut: u64,
    /// Packets with headers that were not captured completely.
    pub headers_cut: u64,
    /// Most captured bytes of a packet with incomplete headers.
    pub longest_cut: u64,
    /// Packets that a hook of the captured process did not pass. Received ones are counted before the hook as
    /// well; the others never left the process.
    pub judged: u64,
    /// Fragments of IP datagrams of which others were not captured. They are not decoded.
    pub fragments: u64,
    /// Packets with an earlier time than the one before at their interface, and the first of them.
    pub backwards: (u64, At),
    /// Packets without a time.
    pub untimed: u64,
    /// Packets with opcodes of manufacturers, of which only the numbers are followed.
    pub foreign: u64,
    /// Packets that may be RoCEv2 in a form that is not decoded.
    pub undecoded: Undecoded,
    /// Bursts that were captured before their segmentation, each counted as one packet.
    pub bursts: u64,
    /// First packet.
    pub first: At,
    /// Last packet.
    pub last: At,
    /// Packets of directions beyond the limit, which were not followed.
    pub not_followed: u64,
    /// Copies of packets that were captured at a second point: another interface, or on arrival after they
    /// left.
    pub seen_twice: u64,
    /// Packets that the capturing program dropped, by its own counters.
    pub capture_drops: u64,
    /// Directions with a latest request that still waits for its answer when the capture ends.
    pub open_requests: u64,
}

impl Analysis {
    /// An analysis that has seen no packets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Like [`Analysis::new`]; completed messages are kept for [`Analysis::take_messages`].
    #[must_use]
    pub fn with_messages() -> Self {
        Self { collect: true, ..Self::default() }
    }

    /// Adds the next packet.
    pub fn feed(&mut self, record: &Record<'_>, seen: &Result<Seen<'_>, NotRoce>) {
        let icrc = seen.as_ref().map_or(IcrcCheck::Cut, Seen::icrc);
        self.feed_checked(record, seen, icrc);
    }

    /// Adds the next packet, with the result of its invariant CRC check.
    pub fn feed_checked(&mut self, record: &Record<'_>, seen: &Result<Seen<'_>, NotRoce>, icrc: IcrcCheck) {
        let at = At { number: record.number, ns: record.time_ns };
        if self.totals.packets == 0 {
            self.totals.first = at;
        }
        self.totals.last = at;
        self.totals.packets += 1;
        self.check_clock(at, record.interface);
        self.current = None;
        self.peers.learn(record.told);
        if record.verdict.is_some() {
            self.totals.judged += 1;
            return;
        }
        match seen {
            Err(NotRoce::Fragment) | Ok(Seen { is_fragment: true, .. }) => self.fragment(at, record, seen),
            Ok(seen) => self.packet(at, record, seen, icrc),
            Err(reason) => self.not_roce(at, record, *reason),
        }
    }

    /// Adds the next RoCE packet.
    fn packet(&mut self, at: At, record: &Record<'_>, seen: &Seen<'_>, icrc: IcrcCheck) {
        self.totals.roce += 1;
        self.totals.roce_bytes += record.original_len as u64;
        if self.is_headers_cut(record, seen) {
            return;
        }
        let packet = match &seen.packet {
            Ok(packet) => packet,
            Err(reason) => return self.malformed(at, seen, *reason, icrc),
        };
        if !seen.is_whole() && record.data.len() >= record.original_len {
            let (there, len) = (seen.udp_payload.len(), seen.udp_payload_len);
            let text = format!(
                "A packet was cut in transit: its headers announce {len} bytes behind the UDP header, and \
                 {there} are there. A receiver should drop it silently."
            );
            self.report(Kind::Malformed, at, at.number, subject(seen), text);
            return;
        }
        // No path MTU is larger.
        if seen.payload_len() > 4096 && icrc != IcrcCheck::Good {
            self.totals.bursts += 1;
            return;
        }
        let place = seen.link.ifindex.unwrap_or(record.interface as u32);
        self.point = (place, record.outbound.or(seen.link.outbound()));
        self.sighting = self.copies.add(at, self.point, seen);
        if self.sighting == Sighting::Copy {
            self.totals.seen_twice += 1;
            let index = self.index.get(&Key::of(seen, packet.bth.dest_qp));
            let Some(direction) = index.map(|index| &mut self.directions[*index]) else { return };
            direction.second_point = Some(self.point);
            if direction.skipped.take() != Some(packet.bth.psn) {
                return direction.copied(packet.bth.psn);
            }
            // It passed the other point first: a retransmission after all.
            self.totals.seen_twice -= 1;
            self.sighting = Sighting::First;
        }
        if !self.intact(at, seen, packet, icrc) {
            return;
        }
        match packet.row().service {
            _ if packet.bth.dest_qp == Qpn::GSI => self.handshakes.feed(at, seen, packet, &mut self.findings),
            Service::Ud => self.datagram(at, seen, packet),
            Service::Cnp => {
                if let Some(direction) = self.direction(at, seen, Service::Rc) {
                    let counts = &mut self.directions[direction].counts;
                    counts.cnps += 1;
                    counts.first_cnp = earliest([counts.first_cnp, at]);
                }
            }
            service => {
                let Some(direction) = self.direction(at, seen, service) else { return };
                // A CNP before did not tell it.
                self.directions[direction].service = service;
                self.count(direction, at, seen);
                if packet.row().is_response() {
                    self.answer(direction, at, seen, packet);
                } else {
                    self.request(direction, at, seen, packet);
                }
            }
        }
    }

    /// Whether the capture cut off headers that the analysis needs. The BTH alone still tells the connection.
    fn is_headers_cut(&mut self, record: &Record<'_>, seen: &Seen<'_>) -> bool {
        let is_cut = record.data.len() < record.original_len && !seen.is_whole();
        let needed = seen.packet.as_ref().map_or(Bth::LEN, |packet| packet.row().header_len());
        if !is_cut || seen.udp_payload.len() >= needed {
            return false;
        }
        self.totals.headers_cut += 1;
        self.totals.longest_cut = self.totals.longest_cut.max(record.data.len() as u64);
        seen.bth.is_none()
    }

    /// Whether the receiver accepts the packet. A packet with a wrong invariant CRC makes a finding.
    fn intact(&mut self, at: At, seen: &Seen<'_>, packet: &Packet<'_>, icrc: IcrcCheck) -> bool {
        let want = match icrc {
            IcrcCheck::Cut => {
                self.totals.cut += u64::from(!seen.is_whole());
                return true;
            }
            IcrcCheck::Good => None,
            IcrcCheck::Bad { want } => Some(want),
        };
        // Linux 6.3 and later computes the CRC of FLUSH over its headers twice, and accepts that.
        if packet.row().operation == Operation::Flush {
            return true;
        }
        // Management datagrams have no direction, and a CNP does not tell the service of its own.
        let service = packet.row().service;
        let has_direction = packet.bth.dest_qp != Qpn::GSI && service != Service::Cnp;
        let index = if has_direction { self.direction(at, seen, service) } else { None };
        let Some(index) = index else {
            if let Some(want) = want {
                self.report(Kind::BadIcrc, at, at.number, subject(seen), damaged(want));
            }
            return want.is_none();
        };
        let direction = &mut self.directions[index];
        let Some(want) = want else {
            direction.counts.intact += 1;
            if direction.counts.intact == 1 && direction.counts.damaged > 0 {
                // The damaged packets before were dropped.
                let doubts = direction.forget();
                doubts.iter().for_each(|(_, _, finding)| self.findings.withdraw(Some(*finding)));
            }
            return true;
        };
        direction.counts.damaged += 1;
        // A direction without any correct CRC is followed: the receiver may accept its packets, see
        // `conclude_damaged`.
        let is_followed = direction.counts.intact == 0;
        if let Some(finding) = self.findings.at(direction.damaged) {
            finding.count += 1;
            return is_followed;
        }
        let finding = self.report(Kind::BadIcrc, at, at.number, subject(seen), damaged(want));
        self.directions[index].damaged = finding;
        is_followed
    }

    fn report(&mut self, kind: Kind, at: At, shown_by: u64, subject: String, text: String) -> Option<usize> {
        self.findings.add(Finding::new(kind, at, shown_by, subject, text))
    }

    /// As `report`, about the direction `index`.
    fn report_on(&mut self, index: usize, kind: Kind, at: At, shown_by: u64, text: String) -> Option<usize> {
        self.report(kind, at, shown_by, self.directions[index].name(), text)
    }

    /// The index of the direction that a packet belongs to; `None` at the limit of directions.
    fn direction(&mut self, at: At, seen: &Seen<'_>, service: Service) -> Option<usize> {
        let key = Key::of(seen, seen.bth?.dest_qp);
        if let Some((_, index)) = self.recent.iter().flatten().find(|(recent, _)| *recent == key) {
            return Some(*index);
        }
        let index = match self.index.get(&key) {
            Some(index) => *index,
            None if self.directions.len() >= DIRECTIONS_MAX => {
                self.totals.not_followed += 1;
                return None;
            }
            None => {
                let index = self.directions.len();
                self.directions.push(Direction::new(key, service, seen.source_port(), at));
                self.index.insert(key, index);
                *self.alike.entry((key.src, key.dst)).or_default() += 1;
                self.pair_by_setup(index);
                index
            }
        };
        self.recent = [Some((key, index)), self.recent[0]];
        Some(index)
    }

    fn count(&mut self, direction: usize, at: At, seen: &Seen<'_>) {
        self.current = Some(direction);
        if let Some(bth) = seen.bth {
            self.check_p_key(direction, at, bth.p_key.0 & PARTITION);
        }
        let direction = &mut self.directions[direction];
        direction.last = at;
        direction.counts.packets += 1;
        direction.counts.bytes += seen.payload_len() as u64;
        if seen.ecn() == 3 {
            direction.counts.ce += 1;
            direction.counts.first_ce = earliest([direction.counts.first_ce, at]);
        }
    }

    /// Checks that all packets of a connection have the same partition.
    fn check_p_key(&mut self, index: usize, at: At, key: u16) {
        let direction = &mut self.directions[index];
        let (known, since) = *direction.p_key.get_or_insert((key, at));
        if known == key || direction.wrong_p_key {
            return;
        }
        direction.wrong_p_key = true;
        let text = format!(
            "Packet {} has the partition {key:#06x} (P_Key without its highest bit), while packet {} has \
             {known:#06x} for this connection. A queue pair has one partition and should drop packets of \
             others silently: use the same P_Key at both ends.",
            at.number, since.number
        );
        self.report_on(index, Kind::WrongKey, at, at.number, text);
    }

    /// Pairs the two directions of a connection by its setup messages, or by what its devices have told.
    fn pair_by_setup(&mut self, index: usize) {
        let key = self.directions[index].key;
        if let Some(connection) = self.handshakes.connection(key.dst, key.qp) {
            self.directions[index].path_mtu = connection.path_mtu;
            self.directions[index].has_own_mtu = connection.path_mtu.is_some();
            self.directions[index].p_key = connection.p_key;
        }
        let Some(qp) = self.peer_qp(key) else { return };
        let other = Key { src: key.dst, dst: key.src, qp, vni: key.vni };
        if let Some(peer) = self.index.get(&other).copied() {
            self.pair(index, peer);
        }
    }

    /// The queue pair that sends the packets of a direction, if it is known before its first answer.
    fn peer_qp(&self, key: Key) -> Option<Qpn> {
        let connection = self.handshakes.connection(key.dst, key.qp);
        connection.map(|connection| connection.peer_qp).or_else(|| self.peers.of(key.dst, key.qp))
    }

    /// Whether the answers to the requests of a direction may be those of another one: only numbers pair
    /// them.
    fn is_ambiguous(&self, index: usize) -> bool {
        let key = self.directions[index].key;
        self.peer_qp(key).is_none() && self.alike.get(&(key.src, key.dst)).is_some_and(|count| *count > 1)
    }

    fn pair(&mut self, a: usize, b: usize) {
        for (one, other) in [(a, b), (b, a)] {
            let direction = &mut self.directions[one];
            if direction.peer.is_some_and(|known| known != other) {
                // Another responder counts from another number.
                (direction.msn, direction.msn_steps) = (None, 0);
            }
        }
        self.directions[a].peer = Some(b);
        self.directions[b].peer = Some(a);
        let is_certain = self.peer_qp(self.directions[a].key).is_some();
        if is_certain
            && let (Some(key), Some((other, at))) = (self.directions[a].p_key, self.directions[b].p_key)
        {
            self.directions[b].p_key = Some(key);
            self.check_p_key(b, at, other);
        }
        let (mtu, other) = (self.directions[a].path_mtu, self.directions[b].path_mtu);
        self.directions[a].path_mtu = mtu.or(other);
        self.directions[b].path_mtu = other.or(mtu);
    }

    /// Handles a datagram: a message without an answer.
    fn datagram(&mut self, at: At, seen: &Seen<'_>, packet: &Packet<'_>) {
        let Some(index) = self.direction(at, seen, Service::Ud) else { return };
        self.count(index, at, seen);
        let direction = &mut self.directions[index];
        let id = ip_id(seen);
        let is_numbered = direction.numbering.tells(id);
        // The numbers and bytes of datagrams may be constant.
        let most = if is_numbered { SAME_ID_NS } else { DUPLICATED_NS };
        if let Sighting::Again(ns) = self.sighting
            && at.ns.abs_diff(ns) < most
        {
            return self.duplicated(index, at, At { ns, number: 0 }, is_numbered, false);
        }
        direction.numbering.add(id);
        direction.last_request = at;
        let bytes = seen.payload_len() as u64;
        direction.size(bytes);
        direction.counts.message_bytes += bytes;
        match direction.counts.messages.first_mut() {
            Some((_, count)) => *count += 1,
            None => direction.counts.messages.push((packet.row().operation, 1)),
        }
        let Some(deth) = packet.deth() else { return };
        match direction.q_key {
            None => direction.q_key = Some(deth.q_key.0),
            Some(key) if key != deth.q_key.0 && !direction.wrong_key => {
                direction.wrong_key = true;
                let first = direction.first;
                let text = format!(
                    "Datagrams to one queue pair carry different Q_Keys: {key:#010x} in packet {}, {} in \
                     packet {}. A queue pair has one Q_Key and should drop datagrams with another one \
                     silently: senders must use the receiver's.",
                    first.number, deth.q_key, at.number
                );
                self.report_on(index, Kind::WrongKey, first, at.number, text);
            }
            Some(_) => {}
        }
    }

    /// Messages completed since the last call: index of the direction, message, and the packet that completed
    /// it.
    pub fn take_messages(&mut self) -> Vec<(usize, Message, At)> {
        std::mem::take(&mut self.done)
    }

    /// The directions found so far.
    #[must_use]
    pub fn directions(&self) -> &[Direction] {
        &self.directions
    }

    /// Index of the direction of the last packet; `None` if it belongs to none (management datagrams, other
    /// traffic).
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    /// Numbers of the whole capture so far.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Notes that the file ends early, or has unreadable places: packets may be missing.
    pub fn note_damage(&mut self, damage: String) {
        self.damage.get_or_insert(damage);
    }

    /// Ends the analysis. The capturing program dropped `capture_drops` packets, and left packets out on
    /// purpose if `left_out` says so.
    ///
    /// A packet missing from an incomplete capture may have been transmitted all the same. Findings that rest
    /// on missing packets are then withdrawn.
    #[must_use]
    pub fn finish(mut self, capture_drops: u64, left_out: Option<&str>) -> Verdict {
        self.totals.capture_drops = capture_drops;
        let gaps = self.conclude();
        self.handshakes.finish(&mut self.findings);
        self.totals.open_requests = gaps.open_requests;
        let retake = self.conclude_quality(capture_drops, left_out, &gaps);
        let (findings, unlisted) = self.findings.sorted();
        Verdict {
            findings,
            unlisted,
            directions: self.directions,
            totals: self.totals,
            connections: self.handshakes,
            retake,
            device: Vec::new(),
        }
    }
}

/// Describes a packet with a wrong ICRC.
fn damaged(want: u32) -> String {
    format!(
        "A packet is damaged: its invariant CRC should be {:#010x}. A receiver should drop it silently.",
        want.swap_bytes()
    )
}

/// Analyses a source to its end. `each` is called after every packet and returns `Break` to stop early.
///
/// # Errors
/// Those of reading the source.
pub fn analyse<R: Read + Send>(
    source: &mut Source<R>,
    mut analysis: Analysis,
    mut each: impl FnMut(&mut Analysis, &Decoded<'_>) -> ControlFlow<()>,
) -> io::Result<Verdict> {
    decode::each_packet(source, |packet| {
        analysis.feed_checked(&packet.record, &packet.seen, packet.icrc);
        each(&mut analysis, packet)
    })?;
    let damage: Vec<String> = source.notes().take(NOTES_MAX).collect();
    if !damage.is_empty() {
        analysis.note_damage(damage.join("; "));
    }
    let verdict = analysis.finish(source.drops(), source.left_out());
    Ok(Verdict { device: device::engines(source.device()), ..verdict })
}
