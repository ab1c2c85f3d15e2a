//! FLUSH needs the access right in the region and the queue pair.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "../../../nic/device/tests/hostile/domain.rs"]
mod domain;
#[path = "../../../nic/device/tests/rc/mod.rs"]
mod rc;

use std::time::{Duration, Instant};

use roxie::bpf::TapHeader;
use roxie::registry::DomainConfig;
use roxie::transport::{Access, QpAttr, QpCap, QpType, SendFlags, SendWr, WcOpcode, WcStatus, WrOp};
use roxie::verbs::{Buffer, Context, Cq, Device, DeviceConfig, Pd, QpInitAttr, Traffic};
use roxie::wire::{Feth, FlushIcrc, IcrcHeader, Ipv4, Opcode, Udp};
use roxie_hook::TapFilter;
use roxie_hook::control::{Remote, Users};
use sys::RecordReader;

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn a_flush_needs_access_rights_of_region_and_queue_pair() {
    domain::on_both_paths("a_flush_needs_access_rights_of_region_and_queue_pair", || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let pd = context.alloc_pd().expect("the engine starts");
        let flushable = pd.alloc_buffer(4096, Access::FLUSH_GLOBAL).expect("memory");
        let plain = pd.alloc_buffer(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
        let both = Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
        for (target, rights, length, selectivity, status) in [
            (&flushable, both, 4096, Feth::RANGE, WcStatus::Success),
            (&flushable, both, 4097, Feth::RANGE, WcStatus::RemAccessErr),
            (&flushable, both, 4097, Feth::WHOLE_MR, WcStatus::Success),
            (&plain, both, 64, Feth::RANGE, WcStatus::RemAccessErr),
            (&plain, both, 64, Feth::WHOLE_MR, WcStatus::RemAccessErr),
            (&flushable, Access::REMOTE_WRITE, 64, Feth::RANGE, WcStatus::RemInvReqErr),
        ] {
            let case = format!("{length} bytes, {selectivity}, {rights:?}");
            assert_eq!(flush(&context, &pd, target, rights, length, selectivity), status, "{case}");
        }
    });
}

#[test]
fn flushes_are_sent_with_the_configured_icrc() {
    domain::alone("flushes_are_sent_with_the_configured_icrc", || {
        roxie_hook::register();
        let domain = DomainConfig::from_env().expect("set by `alone`");
        for wanted in [FlushIcrc::Iba, FlushIcrc::Rxe] {
            let traffic = Some(Traffic { flush_icrc: wanted, ..Traffic::default() });
            let config = DeviceConfig { traffic, ..DeviceConfig::from_env() };
            let context = Device::open(&config).and_then(|d| d.context()).expect("lo exists");
            let pd = context.alloc_pd().expect("the engine starts");
            let target = pd.alloc_buffer(4096, Access::FLUSH_GLOBAL).expect("memory");
            // The engine of the first device may still be running.
            let slots = Remote::find(&domain, Some(std::process::id()));
            let engines = slots
                .into_iter()
                .filter_map(|(pid, slot)| Remote::connect(&domain, pid, slot, Users::Own).ok());
            let tap = |remote: Remote| {
                let copies = remote.tap(&TapFilter::default()).ok()?;
                Some((remote, copies))
            };
            let mut tapped: Vec<(Remote, RecordReader)> = engines.filter_map(tap).collect();
            let rights = Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
            assert_eq!(flush(&context, &pd, &target, rights, 64, Feth::RANGE), WcStatus::Success);
            let mut made = Vec::new();
            for (_, copies) in &mut tapped {
                copies.read(usize::MAX, |copy| {
                    let (header, frame) = TapHeader::parse(copy).expect("a header");
                    made.extend(icrc_of_flush(frame).filter(|_| header.outbound));
                });
            }
            // On a slow machine the FLUSH may be retransmitted.
            assert!(!made.is_empty() && made.iter().all(|icrc| *icrc == wanted), "{made:?}");
        }
    });
}

/// Returns the ICRC variant of a FLUSH; `None` for other frames.
fn icrc_of_flush(frame: &[u8]) -> Option<FlushIcrc> {
    let ip = Ipv4::parse(frame[14..].first_chunk()?);
    let (udp, payload) = frame[14 + Ipv4::LEN..].split_first_chunk::<{ Udp::LEN }>()?;
    let udp = Udp::parse(udp);
    let (packet, icrc) = payload.split_last_chunk()?;
    (packet[0] == Opcode::RC_FLUSH.0).then_some(())?;
    let header = IcrcHeader::v4(ip.src, ip.dst, udp.src_port, udp.dst_port);
    let variants = [FlushIcrc::Iba, FlushIcrc::Rxe].into_iter();
    let mut variants =
        variants.filter(|f| header.with_flush(*f).icrc(ip.id, packet) == u32::from_le_bytes(*icrc));
    Some(variants.next().expect("the ICRC is valid in one variant"))
}

fn flush(
    context: &Context,
    pd: &Pd,
    target: &Buffer,
    rights: Access,
    length: u32,
    selectivity: u8,
) -> WcStatus {
    let cq = context.create_cq(16, None, 0).expect("within limits");
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
    let [ours, theirs] = [(); 2].map(|()| pd.create_qp(&init).expect("within limits"));
    rc::connect(&ours, &QpAttr { access: rights, ..rc::attr_to(&theirs) });
    rc::connect(&theirs, &QpAttr { access: rights, ..rc::attr_to(&ours) });
    let (remote_addr, r_key, placement) = (target.addr(), target.rkey(), Feth::GLOBAL_VISIBILITY);
    let op = WrOp::Flush { remote_addr, r_key, length, placement, selectivity };
    ours.post_send(&SendWr { wr_id: 1, op, sg_list: &[], flags: SendFlags::empty(), dest: None })
        .expect("room");
    next(&cq)
}

fn next(cq: &Cq) -> WcStatus {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(wc) = cq.poll_one() {
            assert!(wc.status != WcStatus::Success || wc.opcode == WcOpcode::Flush);
            return wc.status;
        }
        assert!(Instant::now() < until, "no completion");
    }
}
