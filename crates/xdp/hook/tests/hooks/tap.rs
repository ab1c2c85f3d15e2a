//! Taps of running devices: copies of packets between the hooks and the port.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use roxie::bpf::{TapHeader, XdpAction};
use roxie::registry::DomainConfig;
use roxie::transport::WcStatus;
use roxie::transport::numbering::slot_of;
use roxie::wire::capture::Conditions;
use roxie::wire::{Bth, IcrcHeader, Ipv4, Opcode, Qpn, Udp};
use roxie_hook::control::{Remote, Users};
use roxie_hook::{Attach, Hook, HookPoint, TapFilter};
use sys::RecordReader;

use super::{DEADLINE, LONG_ACK_TIMEOUT, MESSAGE, SHORT_ACK_TIMEOUT, domain, hook, pair, verdict};

/// A packet copied by a tap.
#[derive(Debug)]
struct Copy {
    point: HookPoint,
    len: u32,
    bytes: Vec<u8>,
}

/// Returns the packets that a tap has copied since the last read.
fn read(copies: &mut RecordReader) -> Vec<Copy> {
    let mut frames = Vec::new();
    copies.read(usize::MAX, |record| frames.extend(split(record)));
    frames
}

/// Returns the packets of a record with their identifications and lengths, but without their checksums.
fn split(record: &[u8]) -> Vec<Copy> {
    let (header, bytes) = TapHeader::parse(record).expect("a header");
    let point = if header.outbound { HookPoint::Egress } else { HookPoint::Ingress };
    if header.stride == 0 {
        return vec![Copy { point, len: header.len, bytes: bytes.to_vec() }];
    }
    let (outer, fronts) =
        (&bytes[..header.outer_len as usize], &bytes[TapHeader::PACKETS_AT - TapHeader::LEN..]);
    let payload_len = header.len as usize - outer.len();
    let segment = if header.segment == 0 { payload_len } else { header.segment as usize };
    let id = u16::from_be_bytes([outer[18], outer[19]]);
    let frame = |(number, front): (usize, &[u8])| {
        let len = segment.min(payload_len - number * segment);
        let mut bytes = [outer, &front[..front.len().min(len)]].concat();
        bytes[18..20].copy_from_slice(&id.wrapping_add(number as u16).to_be_bytes());
        bytes[38..40].copy_from_slice(&(Udp::LEN as u16 + len as u16).to_be_bytes());
        Copy { point, len: (outer.len() + len) as u32, bytes }
    };
    let frames: Vec<Copy> = fronts.chunks_exact(header.stride as usize).enumerate().map(frame).collect();
    assert_eq!(frames.len(), payload_len.div_ceil(segment), "{header:?}");
    frames
}

/// Repeats `work` until a tap has copied `wanted` frames; returns the frames.
fn copies(tap: &mut RecordReader, wanted: usize, work: impl Fn() + Sync) -> Vec<Copy> {
    let (stop, start, mut frames) = (AtomicBool::new(false), Instant::now(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        });
        while frames.len() < wanted && start.elapsed() < DEADLINE {
            frames.extend(read(tap));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(frames.len() >= wanted, "{} frames", frames.len());
    frames
}

/// Returns the IPv4 header of a frame, and its UDP payload.
fn parts(frame: &Copy) -> (Ipv4, &[u8]) {
    let ip = Ipv4::parse(frame.bytes[14..].first_chunk().expect("a header"));
    (ip, &frame.bytes[14 + Ipv4::LEN + Udp::LEN..])
}

fn icrc_of(frame: &Copy) -> IcrcHeader {
    let (ip, _) = parts(frame);
    let udp = Udp::parse(frame.bytes[14 + Ipv4::LEN..].first_chunk().expect("a header"));
    assert_eq!((udp.dst_port, usize::from(udp.length)), (domain::port(), frame.len as usize - 34));
    IcrcHeader::v4(ip.src, ip.dst, udp.src_port, udp.dst_port)
}

/// In both directions each packet of a burst is copied with its own identification and ICRC.
#[test]
fn a_tap_sees_packets_as_they_are_on_the_wire() {
    domain::on_both_paths("tap::a_tap_sees_packets_as_they_are_on_the_wire", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slots = ends.each_ref().map(|end| slot_of(end.qp.qpn()));
        for (at, slot) in slots.into_iter().enumerate() {
            let remote =
                Remote::connect(&domain, std::process::id(), slot, Users::Own).expect("the engine listens");
            let mut tap = remote.tap(&TapFilter::default()).expect("no tap exists yet");
            let frames = copies(&mut tap, 500, || {
                assert_eq!(ends[0].write_and_read(&ends[1], MESSAGE), WcStatus::Success);
            });
            let mut ids = [0; 2];
            for frame in &frames {
                let ((ip, payload), outward) = (parts(frame), frame.point == HookPoint::Egress);
                assert!(ip.checksum_ok(), "{ip}");
                assert_eq!(icrc_of(frame).verify(ip.id, payload), Ok(ip.id), "{frame:?}");
                assert_eq!(frame.bytes.len(), frame.len as usize);
                let dest = Bth::parse(payload.first_chunk().expect("a header")).dest_qp;
                assert_eq!(dest, ends[if outward { 1 - at } else { at }].qp.qpn());
                ids[usize::from(outward)] = ids[usize::from(outward)].max(ip.id);
            }
            // Batches of a ring have at most 16 KiB.
            let last = if domain::through_memory() { 2 } else { 11 };
            assert!(ids.iter().all(|id| *id >= last), "no bursts: {ids:?}");
        }
    });
}

/// The first bytes of consecutive packets share a record, in both directions. The packets in it equal those
/// that another tap copies one by one.
#[test]
fn packets_of_a_burst_share_a_record() {
    domain::on_both_paths("tap::packets_of_a_burst_share_a_record", || {
        const SNAP_LEN: usize = 96;
        let ends = pair(LONG_ACK_TIMEOUT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slots = ends.each_ref().map(|end| slot_of(end.qp.qpn()));
        for slot in slots {
            let connect = || {
                Remote::connect(&domain, std::process::id(), slot, Users::Own).expect("the engine listens")
            };
            let (first, second) = (connect(), connect());
            let mut whole = first.tap(&TapFilter::default()).expect("fewer than four taps");
            let fronts = TapFilter { snap_len: SNAP_LEN as u32, ..TapFilter::default() };
            let mut fronts = second.tap(&fronts).expect("fewer than four taps");
            (0..20).for_each(|_| assert_eq!(ends[0].write_and_read(&ends[1], MESSAGE), WcStatus::Success));
            let whole = read(&mut whole);
            let mut records = 0;
            let mut found = Vec::new();
            while fronts.read(1, |record| found.extend(split(record))) > 0 {
                records += 1;
            }
            for (whole, front) in whole.iter().zip(&found) {
                let shown = whole.bytes.len().min(SNAP_LEN);
                assert_eq!((whole.point, whole.len), (front.point, front.len));
                assert_eq!(whole.bytes[18..20], front.bytes[18..20], "identification");
                assert_eq!(whole.bytes[34..shown], front.bytes[34..shown], "UDP header and payload");
            }
            let both = whole.len().min(found.len());
            // Only one of the taps may see the last acknowledgements.
            assert!(
                both > 1000 && whole.len().abs_diff(found.len()) < 10,
                "{} and {}",
                whole.len(),
                found.len()
            );
            assert!(records * 2 < found.len(), "{records} records of {} packets", found.len());
        }
    });
}

#[test]
fn a_tap_copies_matching_packets_and_ends_with_its_connection() {
    domain::on_both_paths("tap::a_tap_copies_matching_packets_and_ends_with_its_connection", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slot = slot_of(ends[0].qp.qpn());
        let connect =
            || Remote::connect(&domain, std::process::id(), slot, Users::Own).expect("the engine listens");
        let write = || assert_eq!(ends[0].write(&ends[1], MESSAGE), WcStatus::Success);
        let remote = connect();
        // Selected by its own number, and by that of its peer.
        for qp in [ends[0].qp.qpn(), ends[1].qp.qpn()] {
            let filter = TapFilter {
                snap_len: 60,
                qps: vec![qp],
                hosts: vec![Ipv4Addr::LOCALHOST.into()],
                ..TapFilter::default()
            };
            let mut tap = remote.tap(&filter).expect("fewer than four taps");
            let frames = copies(&mut tap, 200, write);
            // 18 bytes after the headers, and space for 24.
            assert!(frames.iter().all(|frame| (60..=66).contains(&frame.bytes.len()) && frame.len >= 62));
            for point in HookPoint::ALL {
                assert!(frames.iter().any(|frame| frame.point == point), "{point}");
            }
        }
        let unknown_qp = TapFilter { qps: vec![Qpn::new(0xff_1234)], ..TapFilter::default() };
        let mut tap = remote.tap(&unknown_qp).expect("fewer than four taps");
        write();
        assert_eq!((read(&mut tap).len(), tap.lost()), (0, 0));
        let elsewhere = TapFilter { hosts: vec![Ipv4Addr::new(10, 0, 0, 9).into()], ..TapFilter::default() };
        let mut tap = remote.tap(&elsewhere).expect("fewer than four taps");
        write();
        assert_eq!((read(&mut tap).len(), tap.lost()), (0, 0));

        // Only acknowledgements; only every fifth packet.
        let opcodes = [Opcode::RC_ACKNOWLEDGE].into_iter().collect();
        let acks = Conditions { opcodes, ..Conditions::default() };
        let acks = TapFilter { conditions: acks, ..TapFilter::default() };
        let mut tap = remote.tap(&acks).expect("fewer than four taps");
        let frames = copies(&mut tap, 8, write);
        let opcode = |frame| Bth::parse(parts(frame).1.first_chunk().expect("a header")).opcode;
        assert!(frames.iter().all(|frame| opcode(frame) == Opcode::RC_ACKNOWLEDGE));
        let fifth = TapFilter { sample: 5, ..TapFilter::default() };
        let mut tap = remote.tap(&fifth).expect("fewer than four taps");
        write();
        let frames = read(&mut tap).len();
        assert!((5..20).contains(&frames), "{frames} of 25 packets and their ACKs");

        // Without a reader, packets that find no space are counted, each one once.
        let heads = TapFilter { snap_len: 60, ..TapFilter::default() };
        let (other, start) = (connect(), Instant::now());
        let mut tap = remote.tap(&heads).expect("fewer than four taps");
        let mut complete = other.tap(&heads).expect("fewer than four taps");
        let (mut all, mut taken) = (0, 0);
        while tap.lost() == 0 {
            (0..400).for_each(|_| write());
            all += read(&mut complete).len() as u64;
            assert!(start.elapsed() < DEADLINE, "no record is lost");
        }
        while all != taken + tap.lost() {
            all += read(&mut complete).len() as u64;
            taken += read(&mut tap).len() as u64;
            assert!(start.elapsed() < DEADLINE, "of {all} packets {taken}, and {} lost", tap.lost());
        }
        assert!(complete.lost() == 0 && taken > 0);
        drop(other);
        let mut others: Vec<Remote> = (0..3).map(|_| connect()).collect();
        others.iter().for_each(|other| drop(other.tap(&unknown_qp).expect("fewer than four taps")));
        let late = connect();
        let refused = late.tap(&unknown_qp).expect_err("four taps exist").to_string();
        assert!(refused.contains("4 captures"), "{refused}");
        others.pop();
        while late.tap(&unknown_qp).is_err() {
            assert!(start.elapsed() < DEADLINE, "a tap survives its connection");
        }
    });
}

/// A tap sees received packets before the hook drops them, and sent packets after the hook has changed them.
#[test]
fn a_tap_is_on_the_wire_side_of_hooks() {
    domain::on_both_paths("tap::a_tap_is_on_the_wire_side_of_hooks", || {
        let ends = pair(SHORT_ACK_TIMEOUT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let remotes = ends.each_ref().map(|end| {
            let slot = slot_of(end.qp.qpn());
            let remote =
                Remote::connect(&domain, std::process::id(), slot, Users::Own).expect("the engine listens");
            let tap = remote.tap(&TapFilter::default()).expect("no tap exists yet");
            (remote, tap)
        });
        let [mut sender, mut receiver] = remotes;
        let marks = Hook::parse("impair:ecn=100%+count").expect("native stages");
        ends[0].device.attach_hook(HookPoint::Egress, marks, false).expect("a free point");
        let drops = hook(&verdict("drops", XdpAction::Drop));
        ends[1].device.attach_hook(HookPoint::Ingress, drops, false).expect("a free point");
        assert_eq!(ends[0].write(&ends[1], 1000), WcStatus::RetryExcErr);
        let [sent, received] = [&mut sender.1, &mut receiver.1].map(read);
        assert!(sent.len() > 1 && sent.len() == received.len(), "{} and {}", sent.len(), received.len());
        for (sent, received) in sent.iter().zip(&received) {
            assert_eq!((sent.point, received.point), (HookPoint::Egress, HookPoint::Ingress));
            assert_eq!(sent.bytes[14..], received.bytes[14..]);
        }
        // A tap sees no packet that the egress hook drops.
        let drops = hook(&verdict("drops", XdpAction::Drop));
        ends[1].device.attach_hook(HookPoint::Egress, drops, false).expect("a free point");
        assert_eq!(ends[1].device.detach_hook(HookPoint::Ingress).expect("attached").name(), "drops");
        assert_eq!((read(&mut receiver.1).len(), receiver.1.lost()), (0, 0));
    });
}
