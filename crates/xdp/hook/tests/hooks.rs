//! Hooks of two running devices that communicate over loopback; each test has its own process and domain.

#[expect(dead_code, reason = "all tests take both paths")]
#[path = "../../../nic/device/tests/hostile/domain.rs"]
mod domain;
#[path = "../../../nic/device/tests/rc/mod.rs"]
mod rc;
#[path = "hooks/tap.rs"]
mod tap;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use roxie::bpf::{Asm, Cond, Helper, MapDef, Program, Reg, Size, XdpAction, XdpMd};
use roxie::registry::DomainConfig;
use roxie::transport::numbering::slot_of;
use roxie::transport::{Access, QpAttr, QpCap, QpType, SendFlags, SendWr, WcStatus, WrOp};
use roxie::verbs::{Buffer, Cq, Device, DeviceConfig, Engines, Qp, QpInitAttr, Traffic};
use roxie_hook::control::{Remote, Users};
use roxie_hook::{Attach, Hook, HookError, HookPlan, HookPoint, register};

const DEPTH: u32 = 16;
const MESSAGE: usize = 100_000;
/// ACK timeout of 67 ms, within which a busy machine answers (IBA 9.7.6.1.3).
const LONG_ACK_TIMEOUT: u8 = 14;
/// ACK timeout of 4 ms, for tests in which packets do not arrive.
const SHORT_ACK_TIMEOUT: u8 = 10;
/// Time after which a test that waits has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// One device with one RC queue pair.
struct End {
    device: Device,
    qp: Qp,
    cq: Cq,
    buffer: Buffer,
}

impl End {
    fn new(device: Device) -> Self {
        let context = device.context().expect("a free descriptor");
        let pd = context.alloc_pd().expect("the engine starts");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = pd.alloc_buffer(MESSAGE, access).expect("memory");
        let cq = context.create_cq(2 * DEPTH, None, 0).expect("within limits");
        let qp = pd.create_qp(&qp_init(&cq)).expect("within limits");
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

    /// Writes a message to the peer; returns the status of its completion.
    fn write(&self, peer: &Self, length: usize) -> WcStatus {
        let (remote_addr, r_key) = (peer.buffer.addr(), peer.buffer.rkey());
        self.perform(&[WrOp::Write { remote_addr, r_key }], peer, length)
    }

    /// Writes a message to the peer, and reads it back; returns the status of the last completion.
    fn write_and_read(&self, peer: &Self, length: usize) -> WcStatus {
        let (remote_addr, r_key) = (peer.buffer.addr(), peer.buffer.rkey());
        self.perform(&[WrOp::Write { remote_addr, r_key }, WrOp::Read { remote_addr, r_key }], peer, length)
    }

    /// Performs the operations one after the other, until one fails.
    fn perform(&self, ops: &[WrOp], peer: &Self, length: usize) -> WcStatus {
        for &op in ops {
            let sg_list = [self.buffer.sge(0, length)];
            let wr = SendWr { wr_id: 0, op, sg_list: &sg_list, flags: SendFlags::empty(), dest: None };
            self.qp.post_send(&wr).expect("the send queue has room");
            let start = Instant::now();
            let status = loop {
                // This thread polls the peer's engine too, so no further thread is needed.
                assert!(peer.cq.poll_one().is_none(), "the peer posts no work");
                if let Some(wc) = self.cq.poll_one() {
                    break wc.status;
                }
                assert!(start.elapsed() < DEADLINE, "no completion");
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

fn qp_init(cq: &Cq) -> QpInitAttr {
    let cap = QpCap { max_send_wr: DEPTH, max_send_sge: 1, ..QpCap::default() };
    let (send_cq, recv_cq, ty) = (cq.clone(), cq.clone(), QpType::Rc);
    QpInitAttr { ty, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 }
}

fn device() -> Device {
    register();
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
    asm.finish().expect("a complete program")
}

/// A program that reads the packet and returns the verdict.
fn verdict(name: &str, action: XdpAction) -> Program {
    program(name, |asm| {
        asm.load_ctx(Reg::R2, Reg::R1, XdpMd::Data).load(Size::B, Reg::R3, Reg::R2, 60).ret(action);
    })
}

fn hook(program: &Program) -> Hook {
    Hook::program(program).expect("a valid program")
}

#[test]
fn replacing_hooks_under_traffic_loses_no_packet() {
    domain::on_both_paths("replacing_hooks_under_traffic_loses_no_packet", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let (stop, passes) = (AtomicBool::new(false), verdict("passes", XdpAction::Pass));
        let changes = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (end, point) in ends.iter().flat_map(|end| HookPoint::ALL.map(|point| (end, point))) {
                        let next = match changes.load(Ordering::Relaxed) % 3 {
                            0 => hook(&passes),
                            1 => Hook::parse("count").expect("a native stage"),
                            _ => {
                                end.device.detach_hook(point).expect("a hook is attached");
                                continue;
                            }
                        };
                        end.device.attach_hook(point, next, true).expect("replacing is allowed");
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
            let (start, mut rounds, mut status) = (Instant::now(), 0, WcStatus::Success);
            let is_done = |rounds| rounds >= 10 && changes.load(Ordering::Relaxed) >= 10;
            while status == WcStatus::Success
                && !changing.is_finished()
                && !(is_done(rounds) && start.elapsed() >= Duration::from_secs(1))
            {
                status = ends[0].write_and_read(&ends[1], MESSAGE);
                rounds += 1;
            }
            stop.store(true, Ordering::Relaxed);
            changing.join().expect("no panic");
            assert_eq!(status, WcStatus::Success, "round {rounds}");
        });
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
fn a_packet_that_is_always_dropped_ends_in_retry_exceeded() {
    domain::on_both_paths("a_packet_that_is_always_dropped_ends_in_retry_exceeded", || {
        let cases = [
            (0, HookPoint::Egress, XdpAction::Drop, "tx_xdp_drop"),
            (1, HookPoint::Ingress, XdpAction::Drop, "rx_xdp_drop"),
            (1, HookPoint::Ingress, XdpAction::Aborted, "rx_xdp_aborted"),
            (1, HookPoint::Egress, XdpAction::Drop, "tx_xdp_drop"),
        ];
        for (at, point, action, counter) in cases {
            let ends = pair(SHORT_ACK_TIMEOUT);
            assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::Success);
            ends[at].device.attach_hook(point, hook(&verdict("drops", action)), false).expect("a free point");
            assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::RetryExcErr, "{point} {action}");
            // Eight attempts; the last ones may still be in flight.
            assert!(ends[at].counter(counter) >= 4, "{counter}: {}", ends[at].counter(counter));
        }
    });
}

#[test]
fn transfers_survive_an_impaired_network_in_both_directions() {
    domain::on_both_paths("transfers_survive_an_impaired_network_in_both_directions", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let bad = "impair:loss=1%,duplicate=1%,seed=7+impair:delay=10us,jitter=50us,seed=8";
        for (end, point) in ends.iter().flat_map(|end| HookPoint::ALL.map(|point| (end, point))) {
            end.device
                .attach_hook(point, Hook::parse(bad).expect("a valid hook"), false)
                .expect("a free point");
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
fn held_packets_leave_before_the_device_is_quiesced() {
    domain::on_both_paths("held_packets_leave_before_the_device_is_quiesced", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let slow = Hook::parse("impair:delay=60s").expect("a valid hook");
        ends[0].device.attach_hook(HookPoint::Egress, slow, false).expect("a free point");
        ends[0].buffer.write(0, b"the last");
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
        assert_eq!(&arrived, b"the last");
    });
}

#[test]
fn a_hook_can_be_attached_before_the_engine_starts() {
    domain::on_both_paths("a_hook_can_be_attached_before_the_engine_starts", || {
        let early = device();
        early
            .attach_hook(HookPoint::Ingress, hook(&verdict("first", XdpAction::Pass)), false)
            .expect("a free point");
        let refused = early.attach_hook(HookPoint::Ingress, hook(&verdict("second", XdpAction::Pass)), false);
        assert!(matches!(refused, Err(HookError::Occupied { name, .. }) if name == "first"));
        let ends = [End::new(early), End::new(device())];
        ends[0].connect(&ends[1], LONG_ACK_TIMEOUT);
        ends[1].connect(&ends[0], LONG_ACK_TIMEOUT);
        assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::Success);
        let status = ends[0].device.hooks().expect("the engine runs");
        assert_eq!((status.len(), status[0].name.as_str()), (1, "first"));
        assert_eq!(status[0].counters.packets, ends[0].counter("rx_xdp_packets"));
        assert!(status[0].counters.packets >= 2);
    });
}

#[test]
fn packets_sent_back_by_a_hook_are_received_again() {
    domain::on_both_paths("packets_sent_back_by_a_hook_are_received_again", || {
        let ends = pair(SHORT_ACK_TIMEOUT);
        // Both addresses are equal, so the program need not swap them.
        let bounce = hook(&verdict("bounces", XdpAction::Tx));
        ends[1].device.attach_hook(HookPoint::Ingress, bounce, false).expect("a free point");
        assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::RetryExcErr);
        // Until now, the packets went round: they are addressed to the QP that sends them back.
        ends[1].device.detach_hook(HookPoint::Ingress).expect("a hook is attached");
        let bounced = ends[1].counter("tx_xdp_xmit");
        assert!(bounced > 0 && ends[1].counter("tx_xdp_xmit_errors") == 0);
        assert_eq!(ends[1].counter("rx_xdp_tx"), bounced);
    });
}

#[test]
fn packets_redirected_to_another_process_reach_their_queue_pair() {
    domain::on_both_paths("packets_redirected_to_another_process_reach_their_queue_pair", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let slots = ends.each_ref().map(|end| slot_of(end.qp.qpn()));
        assert_ne!(slots[0], slots[1]);
        let detour = program("detour", |asm| {
            let slots_map = asm.map(MapDef::cpumap("slots", 4096));
            asm.load_map(Reg::R1, slots_map).mov(Reg::R2, slots[0] as i32).mov(Reg::R3, 0);
            asm.call(Helper::RedirectMap).exit();
        });
        ends[1].device.attach_hook(HookPoint::Ingress, hook(&detour), false).expect("a free point");
        assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::Success);
        assert!(ends[1].counter("rx_xdp_redirect") >= 2);
        assert_eq!(ends[1].counter("rx_xdp_redirect_errors") + ends[1].counter("rx_xdp_redirect_nobody"), 0);
    });
}

#[test]
fn packets_redirected_to_a_slot_without_a_process_pass_if_the_program_says_so() {
    domain::on_both_paths(
        "packets_redirected_to_a_slot_without_a_process_pass_if_the_program_says_so",
        || {
            let ends = pair(LONG_ACK_TIMEOUT);
            let slots = ends.each_ref().map(|end| slot_of(end.qp.qpn()));
            let empty = (1..).find(|slot| !slots.contains(slot)).expect("a slot without a process");
            let detour = program("detour", |asm| {
                let slots_map = asm.map(MapDef::cpumap("slots", 4096));
                asm.load_map(Reg::R1, slots_map).mov(Reg::R2, empty as i32);
                asm.mov(Reg::R3, XdpAction::Pass.number() as i32).call(Helper::RedirectMap).exit();
            });
            ends[1].device.attach_hook(HookPoint::Ingress, hook(&detour), false).expect("a free point");
            assert_eq!(ends[0].write_and_read(&ends[1], 1000), WcStatus::Success);
            assert_eq!(ends[0].counter("retransmitted_pkts"), 0);
            let passed = ends[1].counter("rx_xdp_redirect_nobody");
            assert!(passed >= 2 && passed == ends[1].counter("rx_xdp_redirect"));
            let domain = DomainConfig::from_env().expect("set by `alone`");
            let remote =
                Remote::connect(&domain, std::process::id(), slots[1], Users::Own).expect("it listens");
            let row = ("redirect_nobody".to_owned(), passed);
            assert!(remote.hooks().expect("the engine answers")[0].rows.contains(&row));
        },
    );
}

#[test]
fn hooks_are_attached_to_a_running_process_from_outside() {
    domain::on_both_paths("hooks_are_attached_to_a_running_process_from_outside", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let pid = std::process::id();
        let found = Remote::find(&domain, Some(pid));
        assert_eq!(found.len(), 2, "two engines in one process");
        let slot = slot_of(ends[1].qp.qpn());
        let remote = Remote::connect(&domain, pid, slot, Users::Own).expect("the engine listens");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(ends[0].write_and_read(&ends[1], MESSAGE), WcStatus::Success);
                }
            });
            let plan = HookPlan::read("count+impair:seed=1").expect("native stages");
            remote.attach(HookPoint::Ingress, &plan, false).expect("a free point");
            let refused = remote.attach(HookPoint::Ingress, &plan, false).expect_err("the point is occupied");
            assert_eq!(refused.to_string(), "ingress has a program already: count+impair:seed=1");
            assert!(refused.remedy().expect("the refusal has a remedy").contains("--replace"));
            remote.attach(HookPoint::Ingress, &plan, true).expect("replacing is allowed");
            let start = Instant::now();
            while remote.hooks().expect("the engine answers")[0].counters.pass < 1000 {
                assert!(start.elapsed() < DEADLINE, "the hook counts no traffic");
            }
            remote.detach(HookPoint::Ingress).expect("a hook is attached");
            assert_eq!(remote.hooks().expect("the engine answers"), []);
            assert_eq!(
                remote.detach(HookPoint::Ingress).expect_err("no hook is attached").to_string(),
                "ingress has no program"
            );
            stop.store(true, Ordering::Relaxed);
        });
        let remains = ends[1].counter("rx_xdp_drop");
        drop(ends);
        assert_eq!(remains, 0);
        // The names are released with the engines.
        let start = Instant::now();
        while !Remote::find(&domain, Some(pid)).is_empty() {
            assert!(start.elapsed() < DEADLINE, "the name of an engine remains");
        }
    });
}

/// Redirected packets do not arrive, as on a lossy network; the transport retransmits them.
#[test]
fn frames_redirected_to_an_xskmap_are_read_from_outside() {
    domain::on_both_paths("frames_redirected_to_an_xskmap_are_read_from_outside", || {
        let ends = pair(LONG_ACK_TIMEOUT);
        let domain = DomainConfig::from_env().expect("set by `alone`");
        let slot = slot_of(ends[1].qp.qpn());
        let remote =
            Remote::connect(&domain, std::process::id(), slot, Users::Own).expect("the engine listens");
        let mut asm = Asm::new("divert");
        let (map, pass) = (asm.map(MapDef::xskmap("xsks", 2)), asm.label());
        // Every 64th packet goes to entry 1, the others pass; all pass while there is no reader.
        asm.call(Helper::GetPrandomU32).and(Reg::R0, 63).branch(Cond::Ne, Reg::R0, 0, pass);
        asm.load_map(Reg::R1, map).mov(Reg::R2, 1).mov(Reg::R3, XdpAction::Pass.number() as i32);
        asm.call(Helper::RedirectMap).exit().bind(pass).ret(XdpAction::Pass);
        let hook = Hook::program(&asm.finish().expect("a complete program")).expect("a valid program");
        ends[1].device.attach_hook(HookPoint::Ingress, hook, false).expect("a free point");
        for _ in 0..5 {
            assert_eq!(ends[0].write(&ends[1], MESSAGE), WcStatus::Success);
        }
        assert_eq!(ends[1].counter("rx_xdp_redirect"), 0, "there is no reader");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(ends[0].write(&ends[1], MESSAGE), WcStatus::Success);
                }
            });
            let (start, mut frames) = (Instant::now(), Vec::new());
            while frames.len() < 20 {
                assert!(start.elapsed() < DEADLINE, "{} frames", frames.len());
                frames.extend(remote.frames().expect("the engine answers"));
            }
            stop.store(true, Ordering::Relaxed);
            for frame in frames {
                assert_eq!((frame.point, frame.key), (HookPoint::Ingress, 1));
                assert!(frame.bytes.len() > 14 + 20 + 8 + 12 && frame.bytes[12..14] == [8, 0], "{frame:?}");
            }
        });
    });
}

/// A hook marks packets as a congested switch would. The peer reports the marks by CNPs; the sender slows
/// down, and recovers when the marks end.
#[test]
fn a_sender_of_marked_packets_slows_down_and_recovers() {
    domain::on_both_paths("a_sender_of_marked_packets_slows_down_and_recovers", || {
        let traffic = Some(Traffic { ecn: true, ..Traffic::default() });
        let capable = DeviceConfig { traffic, ..DeviceConfig::from_env() };
        let ends = pair_of([Device::open(&capable).expect("lo exists"), device()], LONG_ACK_TIMEOUT);
        let [sender, receiver] = &ends;
        let write = || assert_eq!(sender.write(receiver, MESSAGE), WcStatus::Success);
        write();
        assert_eq!(receiver.counter("np_ecn_marked_roce_packets"), 0, "no packet is marked yet");

        let marks = Hook::parse("impair:ecn=100%").expect("a native stage");
        sender.device.attach_hook(HookPoint::Egress, marks, false).expect("a free point");
        let start = Instant::now();
        while sender.counter("rate_waits") < 10 {
            write();
            assert!(start.elapsed() < DEADLINE, "the sender does not slow down");
        }
        let told = receiver.counter("np_cnp_sent");
        assert!(told > 0 && receiver.counter("np_ecn_marked_roce_packets") >= told);
        assert!(sender.counter("rp_cnp_handled") > 0);

        sender.device.detach_hook(HookPoint::Egress).expect("a hook is attached");
        let start = Instant::now();
        loop {
            let waits = sender.counter("rate_waits");
            write();
            if sender.counter("rate_waits") == waits {
                break;
            }
            assert!(start.elapsed() < DEADLINE, "the sender does not recover");
        }
        assert_eq!(sender.counter("np_cnp_sent"), 0, "the hook does not mark packets to the sender");
    });
}

#[test]
fn no_engine_starts_while_a_hook_is_attached() {
    domain::on_both_paths("no_engine_starts_while_a_hook_is_attached", || {
        register();
        let engines = Engines::from_word("auto").ok();
        let config = DeviceConfig { engines, ..DeviceConfig::from_env() };
        let context = Device::open(&config).and_then(|device| device.context()).expect("lo exists");
        let pd = context.alloc_pd().expect("the engine starts");
        // The slot in the number of a queue pair that another thread creates identifies its engine.
        let slot = |qp: &Qp| slot_of(qp.qpn());
        let created = || {
            std::thread::scope(|scope| {
                let create = || {
                    let cq = context.create_cq(16, None, 0).expect("within limits");
                    pd.create_qp(&qp_init(&cq)).expect("within limits")
                };
                scope.spawn(create).join().expect("no panic")
            })
        };
        let hook = || Hook::parse("count").expect("a hook");
        context.device().attach_hook(HookPoint::Ingress, hook(), false).expect("a free point");
        let hooked = [(); 2].map(|()| created());
        assert_eq!(slot(&hooked[0]), slot(&hooked[1]), "the hook sees the packets of both");
        context.device().detach_hook(HookPoint::Ingress).expect("it is attached");
        let free = created();
        let engines = if context.comp_vectors() > 1 { 2 } else { 1 };
        assert_eq!(slot(&free) != slot(&hooked[0]), engines == 2);
        let attached = context.device().attach_hook(HookPoint::Ingress, hook(), false);
        assert_eq!(attached.is_err(), engines == 2, "it would see the packets of one engine: {attached:?}");
    });
}

/// `engine/group.rs` of the device bounds the engines by this number. A connection to an address of this host
/// opens one of them later.
#[test]
fn an_engine_takes_no_more_descriptors_than_are_reserved_for_it() {
    const DESCRIPTORS_EACH: usize = 18;
    domain::on_both_paths("an_engine_takes_no_more_descriptors_than_are_reserved_for_it", || {
        register();
        let count = |engines| {
            let engines = Some(Engines::from_word(engines).expect("a number"));
            let config = DeviceConfig { engines, ..DeviceConfig::from_env() };
            let context = Device::open(&config).and_then(|device| device.context()).expect("lo exists");
            let _pd = context.alloc_pd().expect("it starts the engines");
            std::fs::read_dir("/proc/self/fd").expect("procfs").count()
        };
        let (one, four) = (count("1"), count("4"));
        assert!(four > one && four <= one + 3 * DESCRIPTORS_EACH, "{one}, with three more engines {four}");
    });
}
