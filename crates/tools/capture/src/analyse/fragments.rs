//! Joins the fragments of IP datagrams. A receiver has a fragmented packet when it has the last fragment, so
//! the analysis sees the joined packet then, and never a part of one.

use wire::capture::{DecodeAs, Fragment, FragmentKey, IcrcCheck, NotRoce, Seen};

use super::Analysis;
use super::finding::{At, Kind, subject};
use crate::source::Record;

/// Datagrams that are joined at a time, of 64 KiB at most.
const DATAGRAMS_MAX: usize = 64;
/// Fragments of a datagram: those of 64 KiB at the smallest MTU of IPv6 are 54, of IPv4 with 576 bytes 119.
const PARTS_MAX: usize = 256;
/// How long a receiver keeps fragments (Linux, `ipfrag_time`).
const KEPT_NS: u64 = 30_000_000_000;
/// Why a datagram is not joined.
const MISSING: &str = "some of them were not captured";
/// Don't Fragment, in the first byte of flags and offset.
const DF: u8 = 0x40;

/// The datagrams of which some fragments were captured.
#[derive(Debug, Default)]
pub(super) struct Fragments(Vec<Datagram>);

/// The key of a datagram, and the point at which it was captured.
type Place = (FragmentKey, usize, Option<bool>);

#[derive(Debug)]
struct Datagram {
    place: Place,
    /// Its earliest captured fragment.
    begun: At,
    /// Addresses and queue pair, if the first fragment shows that it is a RoCE packet.
    roce: Option<String>,
    parts: Vec<Part>,
    /// Captured fragments, with second copies.
    captured: u64,
    /// Bytes of all fragments, once the last one was captured.
    len: Option<usize>,
}

#[derive(Debug)]
struct Part {
    offset: usize,
    len: usize,
    /// The captured bytes of its payload; of the first fragment the whole frame.
    bytes: Vec<u8>,
}

/// A datagram of which all fragments were captured.
pub(super) struct Joined {
    /// The frame that would have carried it. Its end is missing if a fragment was not captured completely.
    frame: Vec<u8>,
    /// Bytes of that frame.
    len: usize,
    begun: At,
    count: usize,
    /// Captured fragments, with second copies.
    captured: u64,
    /// Offset of the byte with DF.
    flags_at: Option<usize>,
}

impl Datagram {
    /// Adds a fragment. False if it contradicts the others: a receiver then drops them all (RFC 5722).
    fn add(&mut self, fragment: &Fragment<'_>) -> bool {
        let Fragment { offset, payload_len: len, .. } = *fragment;
        self.captured += 1;
        if !fragment.more {
            self.len = Some(offset + len);
        }
        if self.parts.iter().any(|part| (part.offset, part.len) == (offset, len)) {
            // A second copy.
            return true;
        }
        let overlaps = |part: &Part| offset < part.offset + part.len && part.offset < offset + len;
        if self.parts.iter().any(overlaps) || self.parts.len() == PARTS_MAX {
            return false;
        }
        let bytes =
            if offset == 0 { [fragment.front, fragment.payload].concat() } else { fragment.payload.to_vec() };
        self.parts.push(Part { offset, len, bytes });
        true
    }

    fn is_whole(&self) -> bool {
        self.len == Some(self.parts.iter().map(|part| part.len).sum())
    }

    /// Joins the fragments.
    fn join(mut self, decode_as: DecodeAs) -> Option<Joined> {
        self.parts.sort_by_key(|part| part.offset);
        let payload_len = self.len?;
        let (first, others) = self.parts.split_first()?;
        let head = Fragment::find(decode_as, &first.bytes)?;
        let mut front = head.front.to_vec();
        let kept = head.join_front(&mut front, payload_len)?;
        let mut frame = [&front[..kept], head.payload].concat();
        let mut is_complete = head.payload.len() == first.len;
        for part in others {
            if !is_complete {
                break;
            }
            frame.extend_from_slice(&part.bytes);
            is_complete = part.bytes.len() == part.len;
        }
        Some(Joined {
            frame,
            len: kept + payload_len,
            begun: self.begun,
            count: self.parts.len(),
            captured: self.captured,
            flags_at: head.flags_at(),
        })
    }
}

impl Joined {
    /// Whether the ICRC is right if the sender computed it as if DF were set, which is so in every RoCEv2
    /// packet.
    fn is_good_with_df(&self, record: &Record<'_>, at: usize) -> bool {
        let mut frame = self.frame.clone();
        let Some(flags) = frame.get_mut(at) else { return false };
        *flags |= DF;
        Seen::parse(record.decode_as, &frame).is_ok_and(|seen| seen.icrc() == IcrcCheck::Good)
    }
}

impl Analysis {
    /// Adds a fragment, and the packet if it is the last one.
    pub(super) fn fragment(&mut self, at: At, record: &Record<'_>, seen: &Result<Seen<'_>, NotRoce>) {
        self.totals.fragments += 1;
        self.expire_fragments(at.ns);
        let Some(fragment) = Fragment::find(record.decode_as, record.data) else { return };
        let place = (fragment.key, record.interface, record.outbound);
        let list = &mut self.fragments.0;
        let index = list.iter().position(|datagram| datagram.place == place).unwrap_or_else(|| {
            list.push(Datagram { place, begun: at, roce: None, parts: Vec::new(), captured: 0, len: None });
            list.len() - 1
        });
        let datagram = &mut list[index];
        if let Ok(seen) = seen {
            datagram.roce = Some(subject(seen));
        }
        if !datagram.add(&fragment) {
            let datagram = list.remove(index);
            self.report_missing(&datagram, "they overlap");
        } else if datagram.is_whole() {
            let datagram = list.remove(index);
            if let Some(joined) = datagram.join(record.decode_as) {
                self.joined(at, record, &joined);
            }
        } else if list.len() > DATAGRAMS_MAX {
            let datagram = list.remove(0);
            self.report_missing(&datagram, MISSING);
        }
    }

    /// Adds a packet that was joined from fragments, the last of which is at `at`.
    fn joined(&mut self, at: At, record: &Record<'_>, joined: &Joined) {
        self.totals.fragments = self.totals.fragments.saturating_sub(joined.captured);
        let record = Record { data: &joined.frame, original_len: joined.len, ..*record };
        let seen = Seen::parse(record.decode_as, record.data);
        match &seen {
            // The packet inside a tunnel that was fragmented may be a fragment itself.
            Err(NotRoce::Fragment) | Ok(Seen { is_fragment: true, .. }) => self.fragment(at, &record, &seen),
            Err(reason) => self.not_roce(at, &record, *reason),
            Ok(packet) => {
                let text = format!(
                    "A packet was sent in {} IP fragments. RoCEv2 packets are not fragmented (DF is set, and \
                     NICs drop fragments): use a path MTU that fits the links between the hosts.",
                    joined.count
                );
                self.report(Kind::Fragmented, joined.begun, at.number, subject(packet), text);
                let icrc = match (packet.icrc(), joined.flags_at) {
                    (IcrcCheck::Bad { .. }, Some(at)) if joined.is_good_with_df(&record, at) => {
                        IcrcCheck::Good
                    }
                    (icrc, _) => icrc,
                };
                self.packet(at, &record, packet, icrc);
            }
        }
    }

    /// Gives up the datagrams that a receiver has given up.
    fn expire_fragments(&mut self, now_ns: u64) {
        while let Some(oldest) = self.fragments.0.first()
            && now_ns.saturating_sub(oldest.begun.ns) > KEPT_NS
        {
            let datagram = self.fragments.0.remove(0);
            self.report_missing(&datagram, MISSING);
        }
    }

    /// Gives up all datagrams: the capture ends.
    pub(super) fn conclude_fragments(&mut self) {
        for datagram in std::mem::take(&mut self.fragments.0) {
            self.report_missing(&datagram, MISSING);
        }
    }

    fn report_missing(&mut self, datagram: &Datagram, why: &str) {
        let Some(subject) = datagram.roce.clone() else { return };
        let text = format!(
            "A packet was sent in IP fragments and is not analysed: {why}. RoCEv2 packets are not \
             fragmented: use a path MTU that fits the links between the hosts."
        );
        self.report(Kind::Fragmented, datagram.begun, datagram.begun.number, subject, text);
    }
}
