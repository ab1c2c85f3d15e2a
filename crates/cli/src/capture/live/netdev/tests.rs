//! The program's filter in the kernel, beside what the same conditions say here. As root, else skipped.

use std::path::Path;

use bpf::TapHeader;
use clap::Parser;
use sys::bpf::TestRun;
use wire::capture::{LinkType, Seen};
use wire::{Bth, Ipv4, Psn, Qpn, Udp};

use super::*;
use crate::capture::filter::FilterArgs;
use crate::capture::source;

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    filter: FilterArgs,
}

fn wanted(words: &str) -> Wanted {
    let words = Words::parse_from(["roxie"].into_iter().chain(words.split_whitespace()));
    Wanted { snap: Some(128), filter: words.filter, ..Wanted::default() }
}

/// A tap in the kernel that is not attached to anything.
struct Loaded {
    program: Program,
    ring: RingReader,
    state: Map,
    qps: Option<Map>,
}

impl Loaded {
    /// `None`, with a word, if this process may not load programs.
    fn new(wanted: &Wanted) -> Option<Self> {
        let (snap_len, ring_len) = (wanted.snap.unwrap_or(Tap::WHOLE), 1 << 20);
        let hosts = wanted.filter.host.clone();
        let tap = Tap { snap_len, hosts, filter: filter(wanted), port: ROCE_PORT, ring_len };
        let definition = tap.program("tap", false).expect("it assembles");
        let (program, maps) = match Program::load_with_maps(&definition) {
            Ok(loaded) => loaded,
            Err(error) if error.error.raw_os_error() == Some(nix::libc::EPERM) => {
                eprintln!("skipped: needs CAP_BPF");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut maps: Vec<Option<Map>> = maps.into_iter().map(Some).collect();
        let mut named = |name: &str| definition.map(name).and_then(|map| maps[map.index()].take());
        let ring = RingReader::new(&named(TAP).expect("a ring")).expect("it is one");
        let (state, qps) = (named(TAP_STATE).expect("numbers"), named(TAP_QPS));
        if let Some(qps) = &qps {
            wanted_queue_pairs(qps, wanted).expect("there is room");
        }
        Some(Self { program, ring, state, qps })
    }

    /// What is copied of a frame, or of a burst whose packets have so many bytes behind UDP.
    fn copies(&mut self, frame: &[u8], segment: u32) -> Vec<TapHeader> {
        // gso_size is the 45th word of 48 in struct __sk_buff.
        let mut context = vec![0; 192];
        context[176..180].copy_from_slice(&segment.to_ne_bytes());
        let run = TestRun { packet: frame, context: &context, repeat: 1, ..TestRun::default() };
        self.program.test_run(&run).expect("it runs");
        let mut headers = Vec::new();
        self.ring
            .read(usize::MAX, |record| headers.extend(TapHeader::parse(record).map(|(header, _)| header)));
        headers
    }

    /// Packets copied, by the program's own account.
    fn copied(&self) -> u64 {
        let mut counters = vec![0; self.state.value_size()];
        assert!(self.state.lookup(&0_u32.to_ne_bytes(), &mut counters).expect("it is there"));
        let copied = counters.chunks_exact(TAP_STATE_LEN).map(|cpu| cpu[..8].first_chunk().expect("eight"));
        copied.map(|copied| u64::from_ne_bytes(*copied)).sum()
    }

    fn has_qp(&self, qpn: Qpn) -> bool {
        let found = self.qps.as_ref().map(|qps| qps.lookup(&qpn.value().to_ne_bytes(), &mut [0; 4]));
        found.is_some_and(|found| found.expect("it can be looked up"))
    }
}

/// Every packet of a recording.
fn golden(name: &str, mut each: impl FnMut(&[u8])) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/golden/{name}.pcap"));
    let mut source = source::open(&path).expect("a recording");
    while let Some(record) = source.next_record().expect("it can be read") {
        assert_eq!(record.link_type, LinkType::ETHERNET);
        each(record.data);
    }
}

#[test]
fn the_kernel_copies_what_the_conditions_admit() {
    const RECORDINGS: [&str; 10] = [
        "cm-rping-v4",
        "cm-rej-v6",
        "rc-atomic-v6",
        "rc-read-v6",
        "rnr-then-ok-v6",
        "nak-write-bad-rkey-v4",
        "loss-send-middle-v4",
        "uc-send-write-v6",
        "ud-send-v4",
        "cm-mckey-v4",
    ];
    const FILTERS: [&str; 9] = [
        "--nak",
        "--cnp",
        "--only-errors",
        "--opcode write",
        "--opcode ack --opcode 0x64",
        "--psn 0xfffff0..0x800000",
        "--psn 5",
        "--only-errors --nak --opcode ack",
        "--opcode send --host fd00::1 --host 10.0.0.1",
    ];
    let (mut copied, mut passed) = (0, 0);
    for words in FILTERS {
        let wanted = wanted(words);
        let Some(mut loaded) = Loaded::new(&wanted) else { return };
        let conditions = headers_tell(&wanted);
        let hosts = &wanted.filter.host;
        for name in RECORDINGS {
            golden(name, |frame| {
                let admitted = Seen::parse(LinkType::ETHERNET, frame).is_ok_and(|seen| {
                    (hosts.is_empty() || [seen.ip.src(), seen.ip.dst()].iter().any(|ip| hosts.contains(ip)))
                        && conditions.may_admit(seen.udp_payload, seen.udp_payload_len, seen.ecn())
                });
                let found = !loaded.copies(frame, 0).is_empty();
                assert_eq!(found, admitted, "{words}: {name}: {frame:02x?}");
                *(if found { &mut copied } else { &mut passed }) += 1;
            });
        }
    }
    assert!(copied > 100 && passed > 100, "{copied} copied, {passed} passed");
}

/// Headers of Ethernet, IPv4 and UDP, then packets of 24 bytes to these queue pairs with numbers from 100 on.
fn burst(dest_qps: &[u32]) -> Vec<u8> {
    const PACKET: usize = 24;
    let udp_len = (Udp::LEN + PACKET * dest_qps.len()) as u16;
    let mut frame = vec![0; 42];
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip = Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 64, udp_len).with_checksum();
    ip.emit(frame[14..].first_chunk_mut().expect("long enough"));
    let udp = Udp { src_port: 50_000, dst_port: ROCE_PORT, length: udp_len, checksum: 0 };
    udp.emit(frame[34..].first_chunk_mut().expect("long enough"));
    for (qp, psn) in dest_qps.iter().zip(100..) {
        let mut bth = [0; Bth::LEN];
        let (dest_qp, psn) = (Qpn::new(*qp), Psn::new(psn));
        Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp, psn, ..Bth::default() }.emit(&mut bth);
        frame.extend(bth);
        frame.extend([0; PACKET - Bth::LEN]);
    }
    frame
}

#[test]
fn of_a_burst_every_packet_is_looked_at() {
    let frame = burst(&[7, 7, 8, 7]);
    for (words, copied) in
        [("--psn 103", 1), ("--psn 101..102", 2), ("--psn 104", 0), ("--qp 8", 1), ("--qp 9", 0)]
    {
        let Some(mut loaded) = Loaded::new(&wanted(words)) else { return };
        assert_eq!(loaded.copies(&frame, 24).len(), usize::from(copied > 0), "{words}");
        assert_eq!(loaded.copied(), copied, "{words}");
    }
    // Packets 0, 3, 6, 9 of three bursts of four, on one CPU or another.
    let sample = Wanted { sample: Some(3), ..wanted("") };
    let Some(mut loaded) = Loaded::new(&sample) else { return };
    let headers: Vec<TapHeader> = (0..3).flat_map(|_| loaded.copies(&frame, 24)).collect();
    assert_eq!(headers.len(), 3, "each has a packet of the sample");
    assert!(headers.iter().all(|header| header.number % 4 == 0));
}

#[test]
fn a_wanted_queue_pair_brings_its_peer_with_it() {
    // The requester of a recorded connection, and who answers it.
    let (mut ends, mut all) = (Vec::new(), 0);
    golden("cm-rdma-server-v4", |frame| {
        let seen = Seen::parse(LinkType::ETHERNET, frame).expect("RoCEv2");
        let dest = seen.bth.expect("a header").dest_qp;
        all += 1;
        if dest != Qpn::GSI && !ends.contains(&dest) {
            ends.push(dest);
        }
    });
    let [one, other] = ends[..] else { panic!("{ends:?}") };
    for (qp, peer) in [(one, other), (other, one)] {
        let Some(mut loaded) = Loaded::new(&wanted(&format!("--qp {}", qp.value()))) else { return };
        let mut copied = 0;
        golden("cm-rdma-server-v4", |frame| copied += loaded.copies(frame, 0).len());
        assert_eq!(copied, all, "both directions, and the handshake");
        assert!(loaded.has_qp(qp) && loaded.has_qp(peer));
    }
    let Some(mut loaded) = Loaded::new(&wanted("--qp 0x123456")) else { return };
    golden("cm-rdma-server-v4", |frame| {
        let dest = Seen::parse(LinkType::ETHERNET, frame).expect("RoCEv2").bth.expect("a header").dest_qp;
        assert_eq!(loaded.copies(frame, 0).len(), usize::from(dest == Qpn::GSI));
    });
}
