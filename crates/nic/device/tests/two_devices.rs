//! Two devices of one process: their objects do not mix, and their queue pairs reach each other.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::time::{Duration, Instant};

use roxie::cm::{EventChannel, Id, PortSpace};
use roxie::transport::{
    Access, AddressVector, Dest, Errno, MwBind, QpAttr, QpAttrMask as M, QpCap, QpState, QpType, RecvWr,
    SendFlags, SendWr, UdDest, VerbsError, Wc, WcStatus, WrOp,
};
use roxie::verbs::{
    Buffer, CompCounterType, Context, Cq, Device, DeviceConfig, MrChange, MwType, Pd, Qp, QpInitAttr,
    SrqInitAttr, XrcdInit,
};
use roxie::wire::{Lkey, QKey};

const TIMEOUT: Duration = Duration::from_secs(10);
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const QKEY: QKey = QKey(17);

/// A device on `lo`, and one object of each kind.
struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    memory: Buffer,
}

impl Side {
    fn open(name: &str) -> Self {
        let config = DeviceConfig { name: name.to_owned(), ..DeviceConfig::from_env() };
        let context = Device::open(&config).and_then(|device| device.context()).expect("lo has an address");
        let pd = context.alloc_pd().expect("the engine starts");
        let cq = context.create_cq(64, None, 0).expect("within limits");
        let memory = pd.alloc_buffer(4096, RIGHTS).expect("memory");
        Self { context, pd, cq, memory }
    }

    fn both() -> [Self; 2] {
        [Self::open("one0"), Self::open("two0")]
    }

    fn init(&self, ty: QpType) -> QpInitAttr {
        let cap =
            QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        QpInitAttr { ty, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 }
    }

    fn qp(&self, ty: QpType) -> Qp {
        self.pd.create_qp(&self.init(ty)).expect("within limits")
    }

    fn next(&self) -> Wc {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(wc) = self.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success);
                return wc;
            }
            assert!(Instant::now() < until, "no completion");
        }
    }

    fn send(&self, qp: &Qp, op: WrOp, dest: Option<Dest>) {
        let sg_list = &[self.memory.sge(0, 512)];
        qp.post_send(&SendWr { wr_id: 1, op, sg_list, flags: SendFlags::empty(), dest }).expect("room");
    }
}

/// The refusal is EINVAL, and names the object, the field and both devices.
fn refused<T>(result: Result<T, VerbsError>, object: &str, field: &str) {
    let refused = result.err().unwrap_or_else(|| panic!("{object}.{field} is accepted"));
    assert_eq!((refused.kind(), refused.object(), refused.field()), (Errno::EINVAL, object, field));
    let sentence = refused.to_string();
    for word in [object, field, "one0", "two0"] {
        assert!(sentence.contains(word), "{sentence}");
    }
}

#[test]
fn objects_of_two_devices_do_not_mix() {
    domain::alone("objects_of_two_devices_do_not_mix", || {
        let [one, two] = Side::both();
        let init = one.init(QpType::Rc);
        refused(
            one.pd.create_qp(&QpInitAttr { send_cq: two.cq.clone(), ..init.clone() }),
            "queue pair",
            "send_cq",
        );
        refused(
            one.pd.create_qp(&QpInitAttr { recv_cq: two.cq.clone(), ..init.clone() }),
            "queue pair",
            "recv_cq",
        );
        let mut sizes = SrqInitAttr::default();
        sizes.attr.max_wr = 4;
        let srq = two.pd.create_srq(&sizes).expect("within limits");
        refused(one.pd.create_qp(&QpInitAttr { srq: Some(srq), ..init }), "queue pair", "srq");

        let [own, other] =
            [&one, &two].map(|side| side.context.open_xrcd(&XrcdInit::default()).expect("room"));
        refused(one.pd.create_xrc_srq(&sizes, &other, &one.cq), "SRQ", "xrcd");
        refused(one.pd.create_xrc_srq(&sizes, &own, &two.cq), "SRQ", "cq");

        let channel = two.context.create_comp_channel().expect("descriptors");
        refused(one.context.create_cq(4, Some(&channel), 0), "completion queue", "channel");
        let counter = two.context.create_comp_counter(CompCounterType::WorkRequests).expect("room");
        refused(counter.attach(&one.qp(QpType::Rc), 1), "completion counter", "qp");

        let window = two.pd.alloc_mw(MwType::Type1).expect("room");
        let bind = MwBind { r_key: window.rkey(), mr: Lkey(0), addr: 0, len: 0, access: Access::empty() };
        refused(one.qp(QpType::Rc).bind_mw(&window, 1, SendFlags::empty(), &bind), "memory window", "qp");
        let dm = two.context.alloc_dm(64, 0).expect("room");
        refused(one.pd.reg_dm_mr(&dm, 0, 64, Access::ZERO_BASED), "memory region", "dm");
        let mut bytes = [0_u8; 64];
        // SAFETY: the array outlives the region, and no Rust code uses it meanwhile.
        let mut region = unsafe { one.pd.reg_mr(bytes.as_mut_ptr(), 64, 0, Access::empty()) }.expect("room");
        let change = MrChange { pd: Some(&two.pd), ..MrChange::default() };
        // SAFETY: as above.
        refused(unsafe { region.change(&change) }, "memory region", "pd");

        let channel = EventChannel::new().expect("descriptors");
        let id = Id::new(&one.context, &channel, PortSpace::Tcp, 0).expect("the engine runs");
        let address = one.context.gids().first().expect("lo has an address").gid.ip();
        id.resolve_addr(None, (address, 9).into(), TIMEOUT).expect("lo has a route");
        refused(id.attach_qp(&two.qp(QpType::Rc)), "identifier", "qp");
    });
}

#[test]
fn queue_pairs_of_two_devices_exchange_messages() {
    domain::on_both_paths("queue_pairs_of_two_devices_exchange_messages", || {
        let [one, two] = Side::both();
        let (a, b) = (one.qp(QpType::Rc), two.qp(QpType::Rc));
        rc::connect(&a, &QpAttr { access: RIGHTS, ..rc::attr_to(&b) });
        rc::connect(&b, &QpAttr { access: RIGHTS, ..rc::attr_to(&a) });
        for (from, to, qp, peer) in [(&one, &two, &a, &b), (&two, &one, &b, &a)] {
            from.memory.write(0, &[7; 512]);
            let remote = (to.memory.addr() + 1024, to.memory.rkey());
            from.send(qp, WrOp::Write { remote_addr: remote.0, r_key: remote.1 }, None);
            from.next();
            let mut bytes = [0; 512];
            to.memory.read(1024, &mut bytes);
            assert_eq!(bytes, [7; 512]);

            peer.post_recv(&RecvWr { wr_id: 2, sg_list: &[to.memory.sge(2048, 512)] }).expect("room");
            from.send(qp, WrOp::Send, None);
            assert_eq!((from.next().wr_id, to.next().wr_id), (1, 2));

            to.memory.write(1024, &[9; 512]);
            from.send(qp, WrOp::Read { remote_addr: remote.0, r_key: remote.1 }, None);
            from.next();
            from.memory.read(0, &mut bytes);
            assert_eq!(bytes, [9; 512]);
        }
    });
}

#[test]
fn datagrams_reach_the_other_device_of_a_process() {
    domain::on_both_paths("datagrams_reach_the_other_device_of_a_process", || {
        let [one, two] = Side::both();
        let qps = [&one, &two].map(|side| {
            let qp = side.qp(QpType::Ud);
            let attr = QpAttr { port_num: 1, q_key: QKEY, ..QpAttr::default() };
            let steps = [
                (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
                (QpState::Rtr, M::empty()),
                (QpState::Rts, M::SQ_PSN),
            ];
            for (state, mask) in steps {
                qp.modify(&QpAttr { state, ..attr.clone() }, mask | M::STATE).expect("permitted");
            }
            qp
        });
        qps[1].post_recv(&RecvWr { wr_id: 2, sg_list: &[two.memory.sge(0, 4096)] }).expect("room");
        let dgid = two.context.gids().first().expect("lo has an address").gid;
        let av = AddressVector { dgid, hop_limit: 64, ..AddressVector::default() };
        let dest = UdDest { av, remote_qpn: qps[1].qpn(), remote_qkey: QKEY };
        one.send(&qps[0], WrOp::Send, Some(Dest::Ud(dest)));
        assert_eq!((one.next().wr_id, two.next().wr_id), (1, 2));
    });
}
