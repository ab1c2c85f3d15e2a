//! Compares the filter of the capture program in the kernel with the same conditions in Rust. Needs root,
//! else skipped.

use std::path::Path;

use bpf::TapHeader;
use sys::bpf::TestRun;
use wire::capture::{LinkType, PsnRange, Seen};
use wire::{Bth, Ipv4, Psn, Qpn, Udp};

use super::*;
use crate::filter::{FilterOptions, OpcodeFilter};
use crate::source;

/// Options with a filter, and packets cut behind their headers.
fn options(filter: FilterOptions) -> Options {
    Options { snap_len: Some(128), filter, ..Options::default() }
}

fn opcodes(words: &[&str]) -> Vec<OpcodeFilter> {
    words.iter().map(|words| words.parse().expect("an opcode")).collect()
}

fn psns(first: u32, last: u32) -> FilterOptions {
    let psns = Some(PsnRange { first: Psn::new(first), last: Psn::new(last) });
    FilterOptions { psns, ..FilterOptions::default() }
}

fn queue_pair(number: u32) -> FilterOptions {
    FilterOptions { queue_pairs: vec![Qpn::new(number)], ..FilterOptions::default() }
}

/// A capture program in the kernel that is not attached to an interface.
struct Loaded {
    program: Program,
    ring: RingReader,
    state: Map,
    qps: Option<Map>,
}

impl Loaded {
    /// Loads the program. `None`, with a message, if this process may not load programs.
    fn new(options: &Options) -> Option<Self> {
        let (snap_len, ring_len) = (options.snap_len.unwrap_or(TapProgram::WHOLE), 1 << 20);
        let hosts = options.filter.hosts.clone();
        let filter = conditions(options);
        let tap = TapProgram { snap_len, hosts, filter, hints: false, port: ROCE_PORT, ring_len };
        let definition = tap.program("tap", false).expect("a program");
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
        let ring = RingReader::new(&named(TAP).expect("a ring")).expect("the ring is mapped");
        let (state, qps) = (named(TAP_STATE).expect("the state"), named(TAP_QPS));
        if let Some(qps) = &qps {
            add_queue_pairs(qps, options).expect("the map has room");
        }
        Some(Self { program, ring, state, qps })
    }

    /// The copies of a frame, or of a burst with packets of `segment` bytes behind the UDP header.
    fn copies(&mut self, frame: &[u8], segment: u32) -> Vec<TapHeader> {
        // gso_size is the 45th word of 48 in struct __sk_buff.
        let mut context = vec![0; 192];
        context[176..180].copy_from_slice(&segment.to_ne_bytes());
        let run = TestRun { packet: frame, context: &context, repeat: 1, ..TestRun::default() };
        self.program.test_run(&run).expect("the program runs");
        let mut headers = Vec::new();
        self.ring
            .read(usize::MAX, |record| headers.extend(TapHeader::parse(record).map(|(header, _)| header)));
        headers
    }

    /// Packets copied, by the counter of the program.
    fn copied(&self) -> u64 {
        let mut counters = vec![0; self.state.value_size()];
        assert!(self.state.lookup(&0_u32.to_ne_bytes(), &mut counters).expect("the counters"));
        let copied = counters.chunks_exact(TAP_STATE_LEN).map(|cpu| cpu[..8].first_chunk().expect("eight"));
        copied.map(|copied| u64::from_ne_bytes(*copied)).sum()
    }

    fn has_qp(&self, qpn: Qpn) -> bool {
        let found = self.qps.as_ref().map(|qps| qps.lookup(&qpn.value().to_ne_bytes(), &mut [0; 4]));
        found.is_some_and(|found| found.expect("the map is readable"))
    }
}

/// Calls `handle` with each packet of a golden capture.
fn golden(name: &str, mut handle: impl FnMut(&[u8])) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../tests/golden/{name}.pcap"));
    let mut source = source::open(&path).expect("a golden capture");
    while let Some(record) = source.next_record().expect("a readable capture") {
        assert_eq!(record.decode_as, LinkType::ETHERNET.into());
        handle(record.data);
    }
}

#[test]
fn the_kernel_copies_the_packets_that_the_conditions_admit() {
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
    let all = FilterOptions::default;
    let addresses = ["fd00::1", "10.0.0.1"].map(|ip| ip.parse().expect("an address"));
    let filters = [
        FilterOptions { naks: true, ..all() },
        FilterOptions { congestion: true, ..all() },
        FilterOptions { errors: true, ..all() },
        FilterOptions { opcodes: opcodes(&["write"]), ..all() },
        FilterOptions { opcodes: opcodes(&["ack", "0x64"]), ..all() },
        psns(0xff_fff0, 0x80_0000),
        psns(5, 5),
        FilterOptions { errors: true, naks: true, opcodes: opcodes(&["ack"]), ..all() },
        FilterOptions { opcodes: opcodes(&["send"]), hosts: addresses.to_vec(), ..all() },
    ];
    let (mut copied, mut passed) = (0, 0);
    for filter in filters {
        let options = options(filter);
        let Some(mut loaded) = Loaded::new(&options) else { return };
        let conditions = options.header_conditions();
        let hosts = &options.filter.hosts;
        for name in RECORDINGS {
            golden(name, |frame| {
                let admitted = Seen::parse(LinkType::ETHERNET, frame).is_ok_and(|seen| {
                    (hosts.is_empty() || [seen.ip.src(), seen.ip.dst()].iter().any(|ip| hosts.contains(ip)))
                        && conditions.may_admit(seen.udp_payload, seen.udp_payload_len, seen.ecn())
                });
                let found = !loaded.copies(frame, 0).is_empty();
                assert_eq!(found, admitted, "{:?}: {name}: {frame:02x?}", options.filter);
                *(if found { &mut copied } else { &mut passed }) += 1;
            });
        }
    }
    assert!(copied > 100 && passed > 100, "{copied} copied, {passed} passed");
}

/// Headers of Ethernet, IPv4 and UDP, then packets of 24 bytes to these queue pairs with sequence numbers
/// from 100.
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
fn the_conditions_are_applied_to_each_packet_of_a_burst() {
    let frame = burst(&[7, 7, 8, 7]);
    let cases = [
        (psns(103, 103), 1),
        (psns(101, 102), 2),
        (psns(104, 104), 0),
        (queue_pair(8), 1),
        (queue_pair(9), 0),
    ];
    for (filter, copied) in cases {
        let Some(mut loaded) = Loaded::new(&options(filter.clone())) else { return };
        assert_eq!(loaded.copies(&frame, 24).len(), usize::from(copied > 0), "{filter:?}");
        assert_eq!(loaded.copied(), copied, "{filter:?}");
    }
    // Packets 0, 3, 6 and 9 of three bursts of four, on any CPU.
    let sample = Options { sample: Some(3), ..options(FilterOptions::default()) };
    let Some(mut loaded) = Loaded::new(&sample) else { return };
    let headers: Vec<TapHeader> = (0..3).flat_map(|_| loaded.copies(&frame, 24)).collect();
    assert_eq!(headers.len(), 3, "each burst has a packet of the sample");
    assert!(headers.iter().all(|header| header.number % 4 == 0));
}

#[test]
fn a_wanted_queue_pair_selects_both_directions_of_its_connection() {
    // The queue pairs of both ends of a recorded connection.
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
        let Some(mut loaded) = Loaded::new(&options(queue_pair(qp.value()))) else { return };
        let mut copied = 0;
        golden("cm-rdma-server-v4", |frame| copied += loaded.copies(frame, 0).len());
        assert_eq!(copied, all, "both directions and the connection setup");
        assert!(loaded.has_qp(qp) && loaded.has_qp(peer));
    }
    let Some(mut loaded) = Loaded::new(&options(queue_pair(0x12_3456))) else { return };
    golden("cm-rdma-server-v4", |frame| {
        let dest = Seen::parse(LinkType::ETHERNET, frame).expect("RoCEv2").bth.expect("a header").dest_qp;
        assert_eq!(loaded.copies(frame, 0).len(), usize::from(dest == Qpn::GSI));
    });
}
