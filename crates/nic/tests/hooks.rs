//! Hooks of devices that run: two of them talk over loopback, in a process and a domain of their own per test.

#[expect(dead_code, reason = "all tests take both paths")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roxie::bpf::{Asm, Cond, Helper, MapDef, Program, Reg, Size, TapHeader, XdpAction, XdpMd};
use roxie::hook::control::Remote;
use roxie::hook::{Hook, HookError, HookPlan, HookPoint, TapFilter};
use roxie::registry::DomainConfig;
use roxie::transport::{Access, QpAttr, QpCap, QpType, SendFlags, SendWr, WcStatus, WrOp};
use roxie::verbs::{Buffer, Cq, Device, DeviceConfig, Qp, QpInitAttr, Traffic};
use roxie::wire::capture::Conditions;
use roxie::wire::{Bth, IcrcHeader, Ipv4, Opcode, Qpn, Udp};
use sys::RecordReader;

const DEPTH: u32 = 16;
const MESSAGE: usize = 100_000;
/// ACK timeouts: 67 ms, which a busy machine keeps to; 4 ms, for packets that are not meant to arrive (IBA 9.7.6.1.3).
const PATIENT: u8 = 14;
const HASTY: u8 = 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// One device with one RC queue pair.
struct End {
    device: Device,
    qp: Qp,
    cq: Cq,
    buffer: Buffer,
}

impl End {
    fn new(device: Device) -> Self {
        let context = device.context().expect("a descriptor");
        let pd = context.alloc_pd().expect("the engine starts");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = pd.alloc_buffer(MESSAGE, access).expect("memory");
        let cq = context.create_cq(2 * DEPTH, None, 0).expect("within limits");
        let cap = QpCap { max_send_wr: DEPTH, max_send_sge: 1, ..QpCap::default() };
        let (send_cq, recv_cq, ty) = (cq.clone(), cq.clone(), QpType::Rc);
        let init = QpInitAttr { ty, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let qp = pd.create_qp(&init).expect("within limits");
        Self { device, qp, cq, buffer }
    }

    fn connect(&self, peer: &Self, timeout: u8) {
        let attr = QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            timeout,
            ..rc::attr_to(&peer.qp)
        };
        rc::connect(&self.qp, &attr);
    }

    /// Writes a message to the peer; how that ended.
    fn write(&self, peer: &Self, length: usize) -> WcStatus {
        let (remote_addr, r_key) = (peer.buffer.addr(), peer.buffer.rkey());
        self.perform(&[WrOp::Write { remote_addr, r_key }], peer, length)
    }

    /// Writes a message to the peer, and reads it back; how that ended.
    fn write_and_read(&self, peer: &Self, length: usize) -> WcStatus {
        let (remote_addr, r_key) = (peer.buffer.addr(), peer.buffer.rkey());
        self.perform(&[WrOp::Write { remote_addr, r_key }, WrOp::Read { remote_addr, r_key }], peer, length)
    }

    /// One after the other, until one fails.
    fn perform(&self, ops: &[WrOp], peer: &Self, length: usize) -> WcStatus {
        for &op in ops {
            let sg_list = [self.buffer.sge(0, length)];
            let wr = SendWr { wr_id: 0, op, sg_list: &sg_list, flags: SendFlags::empty(), dest: None };
            self.qp.post_send(&wr).expect("room");
            let start = Instant::now();
            let status = loop {
                // The peer's engine is driven as well: a thread that waits for its own would be a third.
                assert!(peer.cq.poll_one().is_none(), "nothing was asked of the peer");
                if let Some(wc) = self.cq.poll_one() {
                    break wc.status;
                }
                assert!(start.elapsed() < PATIENCE, "no completion");
            };
            if status != WcStatus::Success {
                return status;
            }
        }
        WcStatus::Success
    }

    fn counter(&self, name: &str) -> u64 {
        let rows = self.device.counters();
        rows.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

fn device() -> Device {
    Device::open(&DeviceConfig::from_env()).expect("lo exists")
}

fn pair(timeout: u8) -> [End; 2] {
    pair_of([device(), device()], timeout)
}

fn pair_of(devices: [Device; 2], timeout: u8) -> [End; 2] {
    let ends = devices.map(End::new);
    ends[0].connect(&ends[1], timeout);
    ends[1].connect(&ends[0], timeout);
    ends
}

fn program(name: &str, emit: impl FnOnce(&mut Asm)) -> Program {
    let mut asm = Asm::new(name);
    emit(&mut asm);
    asm.finish().expect("it is whole")
}

/// Looks at the packet and returns the verdict.
fn verdict(name: &str, action: XdpAction) -> Program {
    program(name, |asm| {
        asm.load_ctx(Reg::R2, Reg::R1, XdpMd::Data).load(Size::B, Reg::R3, Reg::R2, 60).ret(action);
    })
}

fn hook(program: &Program) -> Hook {
    Hook::program(program).expect("it can be run")
}

#[test]
fn replacing_hooks_under_traffic_loses_nothing() {
    domain::on_both_paths("replacing_hooks_under_traffic_loses_nothing", || {
        let ends = pair(PATIENT);
        let (stop, passes) = (AtomicBool::new(false), verdict("passes", XdpAction::Pass));
        let rounds = std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                let mut changes = 0;
                while !stop.load(Ordering::Relaxed) {
                    for (end, point) in ends.iter().flat_map(|end| HookPoint::ALL.map(|point| (end, point))) {
                        let next = match changes % 3 {
                            0 => hook(&passes),
                            1 => Hook::parse("count").expect("it is native"),
                            _ => {
                                end.device.detach_hook(point).expect("it is there");
                                continue;
                            }
                        };
                        end.device.attach_hook(point, next, true).expect("replacing is allowed");
                    }
                    changes += 1;
                }
                changes
            });
            let start = Instant::now();
            let mut rounds = 0;
            while start.elapsed() < Duration::from_secs(1) {
                assert_eq!(ends[0].write_and_read(&ends[1], MESSAGE), WcStatus::Success);
                rounds += 1;
            }
            stop.store(true, Ordering::Relaxed);
            assert!(changing.join().expect("no panic") > 10);
            rounds
        });
        assert!(rounds > 10, "{rounds}");
        for end in &ends {
            for name in
                ["rx_xdp_drop", "rx_xdp_aborted", "rx_xdp_malformed", "tx_xdp_drop", "tx_xdp_malformed"]
            {
                assert_eq!(end.counter(name), 0, "{name}");
            }
            assert!(end.counter("rx_xdp_pass") > 100 && end.counter("tx_xdp_pass") > 100);
            assert_eq!((end.counter("rx_bad_icrc"), end.counter("rx_unknown_qp")), (0, 0));
        }
    });
}

#[test]
fn what_is_always_dropped_ends_in_retry_exceeded() {
    domain::on_both_paths("what_is_always_dropped_ends_in_retry_exceeded", || {
        let cases = [
            (0, HookPoint::Egress, XdpAction::Drop, "tx_xdp_drop"),
            (1, HookPoint::Ingress, XdpAction::Drop, "rx_xdp_drop"),
            (1, HookPoint::Ingress, XdpAction::Aborted, "rx_xdp_aborted"),
            (1, HookPoint::Egress, XdpAction::Drop, "tx_xdp_drop"),
        ];
        for (at, point, action, counter) in cases {
            let ends = pair(HASTY);
            assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::Success);
            ends[at].device.attach_hook(point, hook(&verdict("drops", action)), false).expect("it is free");
            assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::RetryExcErr, "{point} {action}");
            // Eight tries; the last ones may still be on their way.
            assert!(ends[at].counter(counter) >= 4, "{counter}: {}", ends[at].counter(counter));
        }
    });
}

#[test]
fn a_bad_network_in_both_directions_is_endured() {
    domain::on_both_paths("a_bad_network_in_both_directions_is_endured", || {
        let ends = pair(PATIENT);
        let bad = "impair:loss=1%,duplicate=1%,seed=7+impair:delay=10us,jitter=50us,seed=8";
        for (end, point) in ends.iter().flat_map(|end| HookPoint::ALL.map(|point| (end, point))) {
            end.device.attach_hook(point, Hook::parse(bad).expect("it is right"), false).expect("it is free");
        }
        for round in 0..20_u8 {
            let bytes: Vec<u8> = (0..MESSAGE).map(|at| at as u8 ^ round).collect();
            ends[0].buffer.write(0, &bytes);
            assert_eq!(ends[0].write_and_read(&ends[1], MESSAGE), WcStatus::Success);
            let mut arrived = vec![0; MESSAGE];
            ends[1].buffer.read(0, &mut arrived);
            assert!(arrived == bytes, "round {round}");
        }
        let sum = |name: &str| ends[0].counter(name) + ends[1].counter(name);
        assert!(sum("rx_xdp_drop") > 0 && sum("tx_xdp_drop") > 0);
        assert!(sum("rx_xdp_held") > 1000 && sum("tx_xdp_doubled") > 0);
    });
}

#[test]
fn what_is_held_back_leaves_before_the_device_rests() {
    domain::on_both_paths("what_is_held_back_leaves_before_the_device_rests", || {
        let ends = pair(PATIENT);
        let slow = Hook::parse("impair:delay=60s").expect("it is right");
        ends[0].device.attach_hook(HookPoint::Egress, slow, false).expect("it is free");
        ends[0].buffer.write(0, b"farewell");
        std::thread::scope(|scope| {
            let written = scope.spawn(|| ends[0].write(&ends[1], 8));
            while ends[0].counter("tx_xdp_held") == 0 {
                std::thread::yield_now();
            }
            ends[0].device.quiesce();
            assert_eq!(written.join().expect("no panic"), WcStatus::Success);
        });
        let mut arrived = [0; 8];
        ends[1].buffer.read(0, &mut arrived);
        assert_eq!(&arrived, b"farewell");
    });
}

#[test]
fn a_hook_may_be_there_before_the_engine() {
    domain::on_both_paths("a_hook_may_be_there_before_the_engine", || {
        let early = device();
        early
            .attach_hook(HookPoint::Ingress, hook(&verdict("first", XdpAction::Pass)), false)
            .expect("it is free");
        let refused = early.attach_hook(HookPoint::Ingress, hook(&verdict("second", XdpAction::Pass)), false);
        assert!(matches!(refused, Err(HookError::Occupied { name, .. }) if name == "first"));
        let ends = [End::new(early), End::new(device())];
        ends[0].connect(&ends[1], PATIENT);
        ends[1].connect(&ends[0], PATIENT);
        assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::Success);
        let status = ends[0].device.hooks().expect("it runs");
        assert_eq!((status.len(), status[0].name.as_str()), (1, "first"));
        assert_eq!(status[0].counters.packets, ends[0].counter("rx_xdp_packets"));
        assert!(status[0].counters.packets >= 2);
    });
}

#[test]
fn packets_that_are_bounced_come_back() {
    domain::on_both_paths("packets_that_are_bounced_come_back", || {
        let ends = pair(HASTY);
        // Both addresses are the same, so that nothing must be swapped.
        let bounce = hook(&verdict("bounces", XdpAction::Tx));
        ends[1].device.attach_hook(HookPoint::Ingress, bounce, false).expect("it is free");
        assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::RetryExcErr);
        // Until here: they are addressed to the QP that bounces them, and go round and round.
        ends[1].device.detach_hook(HookPoint::Ingress).expect("it is there");
        let bounced = ends[1].counter("tx_xdp_xmit");
        assert!(bounced > 0 && ends[1].counter("tx_xdp_xmit_errors") == 0);
        assert_eq!(ends[1].counter("rx_xdp_tx"), bounced);
    });
}

#[test]
fn a_detour_over_another_process_ends_where_it_should() {
    domain::on_both_paths("a_detour_over_another_process_ends_where_it_should", || {
        let ends = pair(PATIENT);
        let slots = ends.each_ref().map(|end| end.qp.qpn().value() >> 16);
        assert_ne!(slots[0], slots[1]);
        let detour = program("detour", |asm| {
            let slots_map = asm.map(MapDef::cpumap("slots", 256));
            asm.load_map(Reg::R1, slots_map).mov(Reg::R2, slots[0] as i32).mov(Reg::R3, 0);
            asm.call(Helper::RedirectMap).exit();
        });
        ends[1].device.attach_hook(HookPoint::Ingress, hook(&detour), false).expect("it is free");
        assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::Success);
        assert!(ends[1].counter("rx_xdp_redirect") >= 2);
        assert_eq!(ends[1].counter("rx_xdp_redirect_errors") + ends[1].counter("rx_xdp_redirect_nobody"), 0);
    });
}

#[test]
fn a_running_process_takes_hooks_from_outside() {
    domain::on_both_paths("a_running_process_takes_hooks_from_outside", || {
        let ends = pair(PATIENT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let pid = std::process::id();
        let found = Remote::find(&domain, Some(pid));
        assert_eq!(found.len(), 2, "two engines in one process");
        let slot = (ends[1].qp.qpn().value() >> 16) as u8;
        let remote = Remote::connect(&domain, pid, slot).expect("it listens");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(ends[0].write_and_read(&ends[1], MESSAGE), WcStatus::Success);
                }
            });
            let plan = HookPlan::read("count+impair:seed=1").expect("native stages");
            remote.attach(HookPoint::Ingress, &plan, false).expect("it is free");
            let refused = remote.attach(HookPoint::Ingress, &plan, false).expect_err("it is taken");
            assert_eq!(refused.to_string(), "ingress has a program already: count+impair:seed=1");
            assert!(refused.remedy().expect("there is one").contains("--replace"));
            remote.attach(HookPoint::Ingress, &plan, true).expect("replacing is allowed");
            let start = Instant::now();
            while remote.hooks().expect("it answers")[0].counters.pass < 1000 {
                assert!(start.elapsed() < PATIENCE, "no traffic is seen");
            }
            remote.detach(HookPoint::Ingress).expect("it is there");
            assert_eq!(remote.hooks().expect("it answers"), []);
            assert_eq!(
                remote.detach(HookPoint::Ingress).expect_err("it is gone").to_string(),
                "ingress has no program"
            );
            stop.store(true, Ordering::Relaxed);
        });
        let remains = ends[1].counter("rx_xdp_drop");
        drop(ends);
        assert_eq!(remains, 0);
        // The names go with the engines.
        let start = Instant::now();
        while !Remote::find(&domain, Some(pid)).is_empty() {
            assert!(start.elapsed() < PATIENCE, "a name remains");
        }
    });
}

/// Of what is redirected nothing arrives, as on a lossy network; the transport sends it again.
#[test]
fn what_is_redirected_to_an_xskmap_is_read_from_outside() {
    domain::on_both_paths("what_is_redirected_to_an_xskmap_is_read_from_outside", || {
        let ends = pair(PATIENT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slot = (ends[1].qp.qpn().value() >> 16) as u8;
        let remote = Remote::connect(&domain, std::process::id(), slot).expect("it listens");
        let mut asm = Asm::new("divert");
        let (map, pass) = (asm.map(MapDef::xskmap("xsks", 2)), asm.label());
        // Every 64th packet goes to entry 1, the others pass; so do all while nobody reads.
        asm.call(Helper::GetPrandomU32).and(Reg::R0, 63).branch(Cond::Ne, Reg::R0, 0, pass);
        asm.load_map(Reg::R1, map).mov(Reg::R2, 1).mov(Reg::R3, XdpAction::Pass.number() as i32);
        asm.call(Helper::RedirectMap).exit().bind(pass).ret(XdpAction::Pass);
        let hook = Hook::program(&asm.finish().expect("it assembles")).expect("it can be run");
        ends[1].device.attach_hook(HookPoint::Ingress, hook, false).expect("it is free");
        for _ in 0..5 {
            assert_eq!(ends[0].write(&ends[1], MESSAGE), WcStatus::Success);
        }
        assert_eq!(ends[1].counter("rx_xdp_redirect"), 0, "nobody reads");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(ends[0].write(&ends[1], MESSAGE), WcStatus::Success);
                }
            });
            let (start, mut frames) = (Instant::now(), Vec::new());
            while frames.len() < 20 {
                assert!(start.elapsed() < PATIENCE, "{} frames", frames.len());
                frames.extend(remote.frames().expect("it answers"));
            }
            stop.store(true, Ordering::Relaxed);
            for frame in frames {
                assert_eq!((frame.point, frame.key), (HookPoint::Ingress, 1));
                assert!(frame.bytes.len() > 14 + 20 + 8 + 12 && frame.bytes[12..14] == [8, 0], "{frame:?}");
            }
        });
    });
}

/// A copy of a tap.
#[derive(Debug)]
struct Copy {
    point: HookPoint,
    len: u32,
    bytes: Vec<u8>,
}

/// What a tap has copied since it was read last.
fn read(copies: &mut RecordReader) -> Vec<Copy> {
    let mut frames = Vec::new();
    copies.read(usize::MAX, |record| frames.extend(split(record)));
    frames
}

/// The packets of a record, with the identifications and the lengths of their own, but not the checksums.
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

/// Frames of a tap until there are `wanted`, while `work` is done again and again.
fn copies(tap: &mut RecordReader, wanted: usize, work: impl Fn() + Sync) -> Vec<Copy> {
    let (stop, start, mut frames) = (AtomicBool::new(false), Instant::now(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        });
        while frames.len() < wanted && start.elapsed() < PATIENCE {
            frames.extend(read(tap));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(frames.len() >= wanted, "{} frames", frames.len());
    frames
}

/// The IPv4 header of a frame, and its UDP payload.
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

/// Both ways, packets of bursts one by one: each has the identification with which it leaves, and its ICRC.
#[test]
fn a_tap_sees_packets_as_they_are_on_the_wire() {
    domain::on_both_paths("a_tap_sees_packets_as_they_are_on_the_wire", || {
        let ends = pair(PATIENT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slots = ends.each_ref().map(|end| (end.qp.qpn().value() >> 16) as u8);
        for (at, slot) in slots.into_iter().enumerate() {
            let remote = Remote::connect(&domain, std::process::id(), slot).expect("it listens");
            let mut tap = remote.tap(&TapFilter::default()).expect("it is the first");
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
            // A ring's trains are of 16 KiB.
            let last = if domain::through_memory() { 2 } else { 11 };
            assert!(ids.iter().all(|id| *id >= last), "no bursts: {ids:?}");
        }
    });
}

/// The fronts of packets that follow each other share a record, both ways, and are told apart as what they are: another tap has the same
/// packets one by one.
#[test]
fn packets_of_a_burst_share_a_record() {
    domain::on_both_paths("packets_of_a_burst_share_a_record", || {
        const SNAP_LEN: usize = 96;
        let ends = pair(PATIENT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slots = ends.each_ref().map(|end| (end.qp.qpn().value() >> 16) as u8);
        for slot in slots {
            let connect = || Remote::connect(&domain, std::process::id(), slot).expect("it listens");
            let (first, second) = (connect(), connect());
            let mut whole = first.tap(&TapFilter::default()).expect("there is room");
            let fronts = TapFilter { snap_len: SNAP_LEN as u32, ..TapFilter::default() };
            let mut fronts = second.tap(&fronts).expect("there is room");
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
                assert_eq!(whole.bytes[34..shown], front.bytes[34..shown], "UDP and what is in it");
            }
            let both = whole.len().min(found.len());
            // Late acknowledgements are seen by one of them alone.
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
fn a_tap_copies_what_is_wanted_and_goes_with_its_reader() {
    domain::on_both_paths("a_tap_copies_what_is_wanted_and_goes_with_its_reader", || {
        let ends = pair(PATIENT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slot = (ends[0].qp.qpn().value() >> 16) as u8;
        let connect = || Remote::connect(&domain, std::process::id(), slot).expect("it listens");
        let write = || assert_eq!(ends[0].write(&ends[1], MESSAGE), WcStatus::Success);
        let remote = connect();
        // By its own number, by its peer's.
        for qp in [ends[0].qp.qpn(), ends[1].qp.qpn()] {
            let filter = TapFilter {
                snap_len: 60,
                qps: vec![qp],
                hosts: vec![Ipv4Addr::LOCALHOST.into()],
                ..TapFilter::default()
            };
            let mut tap = remote.tap(&filter).expect("there is room");
            let frames = copies(&mut tap, 200, write);
            // 18 bytes behind the headers, and room for 24.
            assert!(frames.iter().all(|frame| (60..=66).contains(&frame.bytes.len()) && frame.len >= 62));
            for point in HookPoint::ALL {
                assert!(frames.iter().any(|frame| frame.point == point), "{point}");
            }
        }
        let nobody = TapFilter { qps: vec![Qpn::new(0xff_1234)], ..TapFilter::default() };
        let mut tap = remote.tap(&nobody).expect("there is room");
        write();
        assert_eq!((read(&mut tap).len(), tap.lost()), (0, 0));
        let elsewhere = TapFilter { hosts: vec![Ipv4Addr::new(10, 0, 0, 9).into()], ..TapFilter::default() };
        let mut tap = remote.tap(&elsewhere).expect("there is room");
        write();
        assert_eq!((read(&mut tap).len(), tap.lost()), (0, 0));

        // Answers only; every fifth packet only.
        let opcodes = [Opcode::RC_ACKNOWLEDGE].into_iter().collect();
        let answers = Conditions { opcodes, ..Conditions::default() };
        let answers = TapFilter { conditions: answers, ..TapFilter::default() };
        let mut tap = remote.tap(&answers).expect("there is room");
        let frames = copies(&mut tap, 8, write);
        let opcode = |frame| Bth::parse(parts(frame).1.first_chunk().expect("a header")).opcode;
        assert!(frames.iter().all(|frame| opcode(frame) == Opcode::RC_ACKNOWLEDGE));
        let fifth = TapFilter { sample: 5, ..TapFilter::default() };
        let mut tap = remote.tap(&fifth).expect("there is room");
        write();
        let frames = read(&mut tap).len();
        assert!((5..20).contains(&frames), "{frames} of 25 packets and their answers");

        // Nobody reads: what finds no room is counted, each packet once.
        let heads = TapFilter { snap_len: 60, ..TapFilter::default() };
        let (other, start) = (connect(), Instant::now());
        let mut tap = remote.tap(&heads).expect("there is room");
        let mut complete = other.tap(&heads).expect("there is room");
        let (mut all, mut taken) = (0, 0);
        while tap.lost() == 0 {
            (0..400).for_each(|_| write());
            all += read(&mut complete).len() as u64;
            assert!(start.elapsed() < PATIENCE, "nothing is lost");
        }
        while all != taken + tap.lost() {
            all += read(&mut complete).len() as u64;
            taken += read(&mut tap).len() as u64;
            assert!(start.elapsed() < PATIENCE, "of {all} packets {taken}, and {} lost", tap.lost());
        }
        assert!(complete.lost() == 0 && taken > 0);
        drop(other);
        let mut others: Vec<Remote> = (0..3).map(|_| connect()).collect();
        others.iter().for_each(|other| drop(other.tap(&nobody).expect("there is room")));
        let late = connect();
        let refused = late.tap(&nobody).expect_err("there are four").to_string();
        assert!(refused.contains("4 captures"), "{refused}");
        others.pop();
        while late.tap(&nobody).is_err() {
            assert!(start.elapsed() < PATIENCE, "a tap stays without its reader");
        }
    });
}

/// What the hook drops has been seen on its way in; what it changes is seen changed on its way out.
#[test]
fn a_tap_is_on_the_wire_s_side_of_hooks() {
    domain::on_both_paths("a_tap_is_on_the_wire_s_side_of_hooks", || {
        let ends = pair(HASTY);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let remotes = ends.each_ref().map(|end| {
            let slot = (end.qp.qpn().value() >> 16) as u8;
            let remote = Remote::connect(&domain, std::process::id(), slot).expect("it listens");
            let tap = remote.tap(&TapFilter::default()).expect("it is the first");
            (remote, tap)
        });
        let [mut sender, mut receiver] = remotes;
        let marks = Hook::parse("impair:ecn=100%+count").expect("native");
        ends[0].device.attach_hook(HookPoint::Egress, marks, false).expect("nothing is there");
        let drops = hook(&verdict("drops", XdpAction::Drop));
        ends[1].device.attach_hook(HookPoint::Ingress, drops, false).expect("nothing is there");
        assert_eq!(ends[0].write(&ends[1], 1000), WcStatus::RetryExcErr);
        let [sent, received] = [&mut sender.1, &mut receiver.1].map(read);
        assert!(sent.len() > 1 && sent.len() == received.len(), "{} and {}", sent.len(), received.len());
        for (sent, received) in sent.iter().zip(&received) {
            assert_eq!((sent.point, received.point), (HookPoint::Egress, HookPoint::Ingress));
            assert_eq!(sent.bytes[14..], received.bytes[14..]);
        }
        // A hook that drops on the way out leaves nothing to be seen.
        let drops = hook(&verdict("drops", XdpAction::Drop));
        ends[1].device.attach_hook(HookPoint::Egress, drops, false).expect("nothing is there");
        assert_eq!(ends[1].device.detach_hook(HookPoint::Ingress).expect("it is there").name(), "drops");
        assert_eq!((read(&mut receiver.1).len(), receiver.1.lost()), (0, 0));
    });
}

/// What a switch on the way would mark is marked by a hook. The peer tells of it, the sender waits, and ends that later.
#[test]
fn a_sender_whose_packets_are_marked_slows_down_and_recovers() {
    domain::on_both_paths("a_sender_whose_packets_are_marked_slows_down_and_recovers", || {
        let traffic = Some(Traffic { ecn: true, ..Traffic::default() });
        let capable = DeviceConfig { traffic, ..DeviceConfig::from_env() };
        let ends = pair_of([Device::open(&capable).expect("lo exists"), device()], PATIENT);
        let [sender, receiver] = &ends;
        let write = || assert_eq!(sender.write(receiver, MESSAGE), WcStatus::Success);
        write();
        assert_eq!(receiver.counter("np_ecn_marked_roce_packets"), 0, "capable is not marked");

        let marks = Hook::parse("impair:ecn=100%").expect("it is native");
        sender.device.attach_hook(HookPoint::Egress, marks, false).expect("nothing is there");
        let start = Instant::now();
        while sender.counter("rate_waits") < 10 {
            write();
            assert!(start.elapsed() < PATIENCE, "never told to slow down");
        }
        let told = receiver.counter("np_cnp_sent");
        assert!(told > 0 && receiver.counter("np_ecn_marked_roce_packets") >= told);
        assert!(sender.counter("rp_cnp_handled") > 0);

        sender.device.detach_hook(HookPoint::Egress).expect("it is there");
        let start = Instant::now();
        loop {
            let waits = sender.counter("rate_waits");
            write();
            if sender.counter("rate_waits") == waits {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "never as fast again");
        }
        assert_eq!(sender.counter("np_cnp_sent"), 0, "the way back is not marked");
    });
}
