//! Tests of composed programs against a straightforward decoder of the packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::recipe::{ACCESS, ADDRESSES, Counter, SAMPLES, SLOTS, SampleHeader, source_key};
use crate::recipe::{Access, Action, Lose, Pick, Police, Recipe, Sample, Select, Stage, Target};
use crate::{ProgramKind, UpdateMode, XdpAction};

const PORT: u16 = 4791;
/// Destination of all frames.
const TO_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);
const TO_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);

/// The parts of a frame; `None` is left out.
#[derive(Clone, Debug)]
struct Frame {
    tags: Vec<u16>,
    ip: IpAddr,
    options: u8,
    fragment: u16,
    protocol: u8,
    port: u16,
    dest_qp: u32,
    payload: usize,
}

impl Default for Frame {
    fn default() -> Frame {
        Frame {
            tags: Vec::new(),
            ip: IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)),
            options: 0,
            fragment: 0,
            protocol: 17,
            port: PORT,
            dest_qp: 0x11_0042,
            payload: 40,
        }
    }
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![0xd0, 0, 0, 0, 0, 1, 0x50, 0, 0, 0, 0, 2];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 5]);
        }
        let udp_len = 8 + 12 + self.payload;
        match self.ip {
            IpAddr::V4(source) => {
                frame.extend([8, 0, 0x45 + self.options, 0]);
                let len = 20 + 4 * usize::from(self.options) + udp_len;
                frame.extend((len as u16).to_be_bytes());
                frame.extend([0, 0]);
                frame.extend(self.fragment.to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(TO_V4.octets());
                let sum = frame[frame.len() - 20..].as_chunks::<2>().0.iter();
                let sum: u32 = sum.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
                let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
                let at = frame.len() - 10;
                frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
                frame.extend(vec![1; 4 * usize::from(self.options)]);
            }
            IpAddr::V6(source) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((udp_len as u16).to_be_bytes());
                frame.extend([self.protocol, 64]);
                frame.extend(source.octets());
                frame.extend(TO_V6.octets());
            }
        }
        frame.extend(0xc000_u16.to_be_bytes());
        frame.extend(self.port.to_be_bytes());
        frame.extend((udp_len as u16).to_be_bytes());
        frame.extend([0, 0, 4, 0, 0xff, 0xff]);
        frame.extend(self.dest_qp.to_be_bytes());
        frame.extend([0x80, 0, 0, 1]);
        frame.extend((0..self.payload).map(|byte| byte as u8));
        frame
    }

    /// Returns whether the steering program treats the frame as RoCE.
    fn is_roce(&self) -> bool {
        let tags = self.tags.len() <= 2 && self.tags.iter().all(|tag| [0x8100, 0x88a8].contains(tag));
        let whole = self.ip.is_ipv6() || self.fragment & 0x3fff == 0;
        tags && whole && self.protocol == 17 && self.port == PORT
    }
}

fn frame() -> impl Strategy<Value = Frame> {
    let ip = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from),];
    let tags = prop::collection::vec(
        prop_oneof![
            4 => Just(0x8100u16),
            4 => Just(0x88a8),
            1 => any::<u16>().prop_filter("not an IP type", |tag| ![0x800, 0x86dd].contains(tag)),
        ],
        0..4,
    );
    (
        tags,
        ip,
        0u8..11,
        prop_oneof![4 => Just(0u16), 1 => Just(0x4000), 2 => any::<u16>()],
        prop_oneof![6 => Just(17u8), 1 => any::<u8>()],
        prop_oneof![6 => Just(PORT), 1 => any::<u16>()],
        prop_oneof![4 => (0u32..4).prop_map(|slot| slot << 12 | 0x77), 1 => 0u32..3, 4 => 0..1u32 << 24],
        0usize..64,
    )
        .prop_map(|(tags, ip, options, fragment, protocol, port, dest_qp, payload)| Frame {
            tags,
            ip,
            options,
            fragment,
            protocol,
            port,
            dest_qp,
            payload,
        })
}

fn loaded(recipe: &Recipe) -> Loaded {
    Loaded::new(recipe.program("test", ProgramKind::Xdp).unwrap())
}

fn word(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

proptest! {
    /// Owned packets are redirected, all others pass, and no packet is changed; also when cut anywhere.
    #[test]
    fn steering_redirects_owned_packets_only(
        frame in frame(),
        cut in prop::option::of(0usize..200),
        ours in any::<[bool; 4]>(),
        here in prop::bool::weighted(0.8),
    ) {
        let mut steer = loaded(&Recipe::steer(PORT, 4));
        let to = if frame.ip.is_ipv4() { IpAddr::V4(TO_V4) } else { IpAddr::V6(TO_V6) };
        if here {
            steer.map(ADDRESSES).update(&source_key(to), &word(1), UpdateMode::Any).unwrap();
        }
        steer.map("xsks").update(&word(3), &word(9), UpdateMode::Any).unwrap();
        for (slot, ours) in (0..).zip(ours) {
            steer.map(SLOTS).update(&word(slot), &word(ours.into()), UpdateMode::Any).unwrap();
        }
        let mut bytes = frame.bytes();
        let headers = bytes.len() - frame.payload;
        if let Some(cut) = cut {
            bytes.truncate(cut.max(14));
        }
        let (outcome, after) = steer.run(&bytes);
        let slot = frame.dest_qp as usize >> 12;
        let mine = here && frame.dest_qp > 1 && ours.get(slot) == Some(&true);
        let expected = frame.is_roce() && bytes.len() >= headers && mine;
        prop_assert_eq!(outcome.fault, None);
        prop_assert_eq!(outcome.action(), if expected { XdpAction::Redirect } else { XdpAction::Pass });
        prop_assert_eq!(after, bytes);
    }

    /// The entry is the documented function of the QPN, independent of the rest of the packet.
    #[test]
    fn the_redirect_entry_follows_from_the_qpn(frame in frame(), ways in 1u32..64) {
        let action = Action::Redirect {
            target: Target::Cpu,
            entries: 256,
            pick: Pick::RxQueueQpn { ways },
            miss: XdpAction::Drop,
        };
        let mut spread = loaded(&Recipe { action, stages: Vec::new(), ..Recipe::steer(PORT, 1) });
        for cpu in 0..256 {
            let value = u64::from(cpu + 1).to_le_bytes();
            spread.map("cpus").update(&word(cpu), &value, UpdateMode::Any).unwrap();
        }
        let (outcome, _) = spread.run(&frame.bytes());
        if !frame.is_roce() {
            prop_assert_eq!(outcome.action(), XdpAction::Pass);
            return Ok(());
        }
        // The test packets arrive on queue 3.
        let expected = 3 * ways + way_of(frame.dest_qp, ways);
        match outcome.redirect {
            Some(Redirect::Map { key, .. }) => prop_assert_eq!(key, expected),
            None => prop_assert!(expected >= 256 && outcome.action() == XdpAction::Drop),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    /// Reflecting a packet exchanges the addresses; reflecting it twice restores it.
    #[test]
    fn reflection_is_its_own_inverse(frame in frame(), cut in prop::option::of(14usize..80)) {
        let mut reflect = loaded(&Recipe { action: Action::Reflect, ..Recipe::verdict(XdpAction::Pass) });
        let mut bytes = frame.bytes();
        if let Some(cut) = cut {
            bytes.truncate(cut);
        }
        let (outcome, once) = reflect.run(&bytes);
        prop_assert_eq!(outcome.action(), XdpAction::Tx);
        prop_assert_eq!((&once[..6], &once[6..12]), (&bytes[6..12], &bytes[..6]));
        if frame.tags.is_empty() && frame.ip.is_ipv4() && bytes.len() >= 34 {
            prop_assert_eq!((&once[26..30], &once[30..34]), (&bytes[30..34], &bytes[26..30]));
        }
        let (_, twice) = reflect.run(&once);
        prop_assert_eq!(twice, bytes);
    }

    /// The access list admits and drops by the longest prefix.
    #[test]
    fn the_access_list_applies_the_longest_prefix(
        frame in frame(),
        default_allow: bool,
        rules in prop::collection::vec((0u8..129, any::<bool>()), 0..4),
    ) {
        let stages = vec![Stage::Access(Access { default_allow, entries: 8 })];
        let recipe = Recipe { select: Select::Ip, stages, ..Recipe::verdict(XdpAction::Tx) };
        let mut access = loaded(&recipe);
        let mut best: Option<(u8, bool)> = None;
        for (len, allow) in rules {
            let len = if frame.ip.is_ipv4() { len % 33 } else { len };
            let key = Access::key(frame.ip, len);
            access.map(ACCESS).update(&key, &word(allow.into()), UpdateMode::Any).unwrap();
            if best.is_none_or(|(longest, _)| len >= longest) {
                best = Some((len, allow));
            }
        }
        let (outcome, _) = access.run(&frame.bytes());
        let ip = frame.tags.len() <= 2 && frame.tags.iter().all(|tag| [0x8100, 0x88a8].contains(tag));
        let allowed = best.map_or(default_allow, |(_, allow)| allow);
        let expected = match (ip, allowed) {
            (false, _) => XdpAction::Pass,
            (true, true) => XdpAction::Tx,
            (true, false) => XdpAction::Drop,
        };
        prop_assert_eq!(outcome.action(), expected);
    }

    /// A source gets its rate on average, and at most the burst at once.
    #[test]
    fn policing_enforces_rate_and_burst(gaps in prop::collection::vec(0u64..2_000_000, 1..200)) {
        // The rate is 1000 bytes per millisecond; each packet has 94 bytes.
        let police = Police { bytes_per_s: 1_000_000, burst_bytes: 1000, entries: 4 };
        let stages = vec![Stage::Police(police)];
        let recipe = Recipe { select: Select::Ip, stages, ..Recipe::verdict(XdpAction::Tx) };
        let mut policed = loaded(&recipe);
        let bytes = Frame { payload: 40, ..Frame::default() }.bytes();
        policed.host.now_ns = 1 << 40;
        let start = policed.host.now_ns;
        let mut passed = 0;
        let mut tokens = 1000.0_f64;
        for gap in gaps {
            policed.host.now_ns += gap;
            tokens = (tokens + gap as f64 / 1000.0).min(1000.0);
            let (outcome, _) = policed.run(&bytes);
            if outcome.action() == XdpAction::Tx {
                passed += bytes.len() as u64;
                tokens -= bytes.len() as f64;
                prop_assert!(tokens > -1.0, "more than the bucket held: {tokens}");
            } else {
                prop_assert!(tokens < bytes.len() as f64 + 1.0, "dropped with {tokens} left");
            }
        }
        let elapsed_us = (policed.host.now_ns - start) / 1000;
        prop_assert!(passed <= elapsed_us + 1000 + 1);
    }
}

#[test]
fn each_source_has_its_own_rate_limit() {
    let police = Police { bytes_per_s: 1024, burst_bytes: 100, entries: 4 };
    let recipe =
        Recipe { select: Select::Ip, stages: vec![Stage::Police(police)], ..Recipe::verdict(XdpAction::Tx) };
    let mut policed = loaded(&recipe);
    let from = |last| Frame { ip: Ipv4Addr::new(10, 0, 0, last).into(), ..Frame::default() }.bytes();
    let actions: Vec<_> = [1, 2, 1, 2].map(|last| policed.run(&from(last)).0.action()).into();
    assert_eq!(actions, [XdpAction::Tx, XdpAction::Tx, XdpAction::Drop, XdpAction::Drop]);
    assert!(policed.map("buckets").lookup(&source_key(Ipv4Addr::new(10, 0, 0, 1).into())).is_some());
    let long = Frame { payload: 200, ip: Ipv4Addr::new(10, 0, 0, 3).into(), ..Frame::default() };
    assert_eq!(policed.run(&long.bytes()).0.action(), XdpAction::Drop, "the packet is longer than the burst");
}

#[test]
fn counters_count_packets_and_bytes_by_verdict() {
    let mut steer = loaded(&Recipe { counters: true, ..Recipe::steer(PORT, 4) });
    steer.map(SLOTS).update(&word(0x110), &word(1), UpdateMode::Any).unwrap();
    steer.map(ADDRESSES).update(&source_key(TO_V4.into()), &word(1), UpdateMode::Any).unwrap();
    steer.map("xsks").update(&word(3), &word(1), UpdateMode::Any).unwrap();
    let ours = Frame::default().bytes();
    let others = Frame { port: 53, ..Frame::default() }.bytes();
    steer.run(&ours);
    steer.machine = Machine::new(1);
    steer.run(&ours);
    steer.run(&others[..50]);
    let counter = |action: XdpAction, cpu: usize| {
        let values = steer.map("counters").lookup(&word(action.number())).unwrap();
        Counter::parse(values[16 * cpu..].first_chunk().unwrap())
    };
    let one = Counter { packets: 1, bytes: 94 };
    assert_eq!((counter(XdpAction::Redirect, 0), counter(XdpAction::Redirect, 1)), (one, one));
    assert_eq!(counter(XdpAction::Pass, 1), Counter { packets: 1, bytes: 50 });
    assert_eq!(counter(XdpAction::Drop, 0), Counter::default());
}

#[test]
fn every_nth_packet_is_sampled() {
    let sample = Sample { snap_len: 60, every: 3, ring_bytes: 4096, wakeup_bytes: 0 };
    let recipe = Recipe { stages: vec![Stage::Sample(sample)], ..Recipe::verdict(XdpAction::Drop) };
    let mut sampled = loaded(&recipe);
    let bytes = Frame::default().bytes();
    for round in 0..7 {
        sampled.host.now_ns = 100 + round;
        sampled.run(if round == 3 { &bytes[..20] } else { &bytes });
    }
    let mut records = Vec::new();
    sampled.map(SAMPLES).ring().unwrap().consume(|record| {
        assert_eq!(record.len(), SampleHeader::LEN + 60);
        let (header, copy) = SampleHeader::parse(record).unwrap();
        records.push((header, copy.to_vec()));
    });
    let header = |sequence, len, captured| SampleHeader {
        time_ns: 100 + sequence,
        len,
        captured,
        ifindex: 7,
        rx_queue: 3,
        sequence,
    };
    let expected = [
        (header(0, 94, 60), bytes[..60].to_vec()),
        (header(3, 20, 20), bytes[..20].to_vec()),
        (header(6, 94, 60), bytes[..60].to_vec()),
    ];
    assert_eq!(records, expected);
    assert_eq!(SampleHeader::parse(&[0; 31]), None);
}

#[test]
fn a_sample_that_does_not_fit_is_counted_and_the_packet_passes() {
    let sample = Sample { snap_len: 1000, every: 1, ring_bytes: 4096, wakeup_bytes: 2048 };
    let recipe = Recipe { stages: vec![Stage::Sample(sample)], ..Recipe::verdict(XdpAction::Drop) };
    let mut sampled = loaded(&recipe);
    for _ in 0..5 {
        assert_eq!(sampled.run(&[1; 64]).0.action(), XdpAction::Drop);
    }
    let state = sampled.map("sample_state").lookup(&word(0)).unwrap();
    assert_eq!((state[0], state[8]), (5, 2), "packets seen, samples lost");
}

/// A route through interface 12, as the kernel would answer.
fn route() -> (i64, [u8; 64]) {
    let mut reply = [0; 64];
    reply[8..12].copy_from_slice(&word(12));
    reply[52..58].copy_from_slice(&[0x0a, 0, 0, 0, 0, 0xee]);
    reply[58..64].copy_from_slice(&[0x0a, 0, 0, 0, 0, 0xdd]);
    (0, reply)
}

fn forward() -> Loaded {
    let mut forward =
        loaded(&Recipe { action: Action::Forward { ports: 4 }, ..Recipe::verdict(XdpAction::Pass) });
    forward.host.fib = Some(route());
    forward.map("ports").update(&word(12), &12u64.to_le_bytes(), UpdateMode::Any).unwrap();
    forward
}

fn ipv4_sum(frame: &[u8]) -> u32 {
    let words = frame[14..34].as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn forwarding_rewrites_addresses_ttl_and_checksum() {
    let mut forward = forward();
    for last in 0..=255 {
        let before = Frame { ip: Ipv4Addr::new(10, 1, last, 3).into(), ..Frame::default() }.bytes();
        assert_eq!(ipv4_sum(&before), 0xffff);
        let (outcome, after) = forward.run(&before);
        assert_eq!(outcome.action(), XdpAction::Redirect);
        assert!(matches!(outcome.redirect, Some(Redirect::Map { key: 12, .. })));
        assert_eq!(after[..12], [0x0a, 0, 0, 0, 0, 0xdd, 0x0a, 0, 0, 0, 0, 0xee]);
        assert_eq!((after[22], ipv4_sum(&after)), (63, 0xffff));
        assert_eq!((&after[12..22], &after[26..]), (&before[12..22], &before[26..]));
    }
    let before = Frame { ip: Ipv6Addr::LOCALHOST.into(), ..Frame::default() }.bytes();
    let (outcome, after) = forward.run(&before);
    assert_eq!((outcome.action(), after[21]), (XdpAction::Redirect, 63));
    assert_eq!((&after[12..21], &after[22..]), (&before[12..21], &before[22..]));
}

#[test]
fn the_route_lookup_uses_the_fields_of_the_packet() {
    let mut forward = forward();
    forward.run(&Frame::default().bytes());
    let query = forward.host.fib_query.unwrap();
    assert_eq!((query[0], query[1], &query[6..12]), (2, 17, &[80, 0, 7, 0, 0, 0][..]));
    assert_eq!((&query[16..20], &query[32..36]), (&[10, 1, 2, 3][..], &[10, 9, 9, 9][..]));
    forward.run(&Frame { ip: Ipv6Addr::LOCALHOST.into(), ..Frame::default() }.bytes());
    let query = forward.host.fib_query.unwrap();
    assert_eq!((query[0], query[1], &query[6..12]), (10, 17, &[100, 0, 7, 0, 0, 0][..]));
    assert_eq!((query[31], query[47]), (1, 9));
}

#[test]
fn packets_that_cannot_be_forwarded_pass_unchanged() {
    let passes = |forward: &mut Loaded, bytes: &[u8]| {
        let (outcome, after) = forward.run(bytes);
        assert_eq!((outcome.fault, outcome.action(), &after[..]), (None, XdpAction::Pass, bytes));
    };
    let mut expired = Frame::default().bytes();
    expired[22] = 1;
    passes(&mut forward(), &expired);
    passes(&mut forward(), &Frame { options: 1, ..Frame::default() }.bytes());
    passes(&mut forward(), &Frame { tags: vec![0x8100], ..Frame::default() }.bytes());
    passes(&mut forward(), &Frame::default().bytes()[..33]);
    let mut no_neighbour = forward();
    no_neighbour.host.fib = Some((7, route().1));
    passes(&mut no_neighbour, &Frame::default().bytes());
    let not_a_port = forward();
    not_a_port.map("ports").delete(&word(12)).unwrap();
    passes(&mut { not_a_port }, &Frame::default().bytes());
}

/// The requested share of the 2^32 random values drops the packet.
#[test]
fn random_loss_drops_the_requested_share() {
    for (per_million, last_unlucky) in [(1, 4293), (10_000, 42_949_671), (999_999, u32::MAX - 4295)] {
        let stages = vec![Stage::Lose(Lose { per_million })];
        let mut lose = loaded(&Recipe { stages, ..Recipe::verdict(XdpAction::Pass) });
        for (random, expected) in
            [(0, XdpAction::Drop), (last_unlucky, XdpAction::Drop), (last_unlucky + 1, XdpAction::Pass)]
        {
            lose.host.random = random;
            let (outcome, _) = lose.run(&Frame::default().bytes());
            assert_eq!(outcome.action(), expected, "{per_million} {random}");
        }
    }
    for per_million in [0, 1_000_000] {
        let stages = vec![Stage::Lose(Lose { per_million })];
        let recipe = Recipe { stages, ..Recipe::verdict(XdpAction::Pass) };
        assert!(recipe.program("lose", ProgramKind::Xdp).is_err(), "{per_million}");
    }
}

/// Which of `ways` entries [`Pick::RxQueueQpn`] takes for a QPN: Knuth's multiplicative hash.
fn way_of(dest_qp: u32, ways: u32) -> u32 {
    ((u64::from(dest_qp.wrapping_mul(0x9e37_79b1)) * u64::from(ways)) >> 32) as u32
}

#[test]
fn consecutive_qpns_spread_evenly() {
    for ways in [2, 3, 8, 64] {
        let mut load = vec![0; ways as usize];
        for qpn in 0x11_0000..0x11_1000 {
            load[way_of(qpn, ways) as usize] += 1;
        }
        let fair = 4096 / ways;
        assert!(load.iter().all(|&n| n > fair * 9 / 10 && n < fair * 11 / 10), "{ways}: {load:?}");
    }
}
