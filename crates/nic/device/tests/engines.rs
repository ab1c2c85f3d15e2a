//! Several engines in one device: which engine runs a queue pair, and that keys are valid on all engines.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::time::{Duration, Instant};

use roxie::transport::{
    Access, Errno, MwBind, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr, SendFlags, SendWr, VerbsError,
    Wc, WcOpcode, WcStatus, WrOp,
};
use roxie::verbs::{
    Context, Cq, Device, DeviceConfig, Engines, MwType, Pd, Qp, QpInitAttr, Srq, SrqAttr, SrqInitAttr,
};
use roxie::wire::Rkey;

const TIMEOUT: Duration = Duration::from_secs(10);
const RIGHTS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::MW_BIND);

fn device(engines: &str) -> Context {
    let engines = Some(Engines::from_word(engines).expect("a number"));
    let config = DeviceConfig { engines, ..DeviceConfig::from_env() };
    Device::open(&config).and_then(|device| device.context()).expect("lo exists")
}

fn create(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, srq: Option<&Srq>) -> Qp {
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq, srq) = (send_cq.clone(), recv_cq.clone(), srq.cloned());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq, cap, sq_sig_all: true, cookie: 0 };
    pd.create_qp(&init).expect("within limits")
}

fn connect(a: &Qp, b: &Qp) {
    for (this, that) in [(a, b), (b, a)] {
        rc::connect(this, &QpAttr { access: RIGHTS, ..rc::attr_to(that) });
    }
}

/// Returns the slot in the QPN, which identifies the engine.
fn slot(qp: &Qp) -> u32 {
    u32::from(roxie::transport::numbering::slot_of(qp.qpn()))
}

fn next(cq: &Cq) -> Wc {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(wc) = cq.poll_one() {
            return wc;
        }
        assert!(Instant::now() < until, "no completion");
    }
}

fn post(qp: &Qp, op: WrOp, sg_list: &[roxie::transport::Sge]) -> WcStatus {
    qp.post_send(&SendWr { wr_id: 1, op, sg_list, flags: SendFlags::empty(), dest: None }).expect("room");
    next(qp.send_cq()).status
}

#[test]
fn queue_pairs_are_on_the_engine_of_their_completion_queues() {
    domain::on_both_paths("queue_pairs_are_on_the_engine_of_their_completion_queues", || {
        let context = device("3");
        assert_eq!(context.comp_vectors(), 3);
        let pd = context.alloc_pd().expect("the engines start");
        let cq = |vector| context.create_cq_at(16, None, 0, vector).expect("within limits");
        assert!(matches!(context.create_cq_at(16, None, 0, 3).map_err(VerbsError::kind), Err(Errno::EINVAL)));

        let own = [(); 3].map(|()| cq(0));
        let qps = own.each_ref().map(|cq| create(&pd, cq, cq, None));
        let mut slots = qps.each_ref().map(slot);
        assert_eq!(
            own.each_ref().map(|cq| slot(&create(&pd, cq, cq, None))),
            slots,
            "queue pairs of one CQ are on one engine"
        );
        let named = cq(2);
        assert_eq!(slot(&create(&pd, &named, &named, None)), slots[2]);
        slots.sort_unstable();
        assert!(
            slots.windows(2).all(|pair| pair[0] != pair[1]),
            "the CQs are spread over the engines: {slots:?}"
        );

        // If the two CQs have different engines, the send CQ decides; completions still reach the receive CQ.
        let mixed = create(&pd, &own[1], &own[0], None);
        assert_eq!(slot(&mixed), slot(&qps[1]));
        let buffer = pd.alloc_buffer(64, RIGHTS).expect("memory");
        connect(&mixed, &qps[2]);
        mixed.post_recv(&RecvWr { wr_id: 7, sg_list: &[buffer.sge(32, 32)] }).expect("room");
        buffer.write(0, b"across");
        assert_eq!(post(&qps[2], WrOp::Send, &[buffer.sge(0, 6)]), WcStatus::Success);
        assert_eq!(next(&own[0]).opcode, WcOpcode::Recv);
        let mut bytes = [0; 6];
        buffer.read(32, &mut bytes);
        assert_eq!(&bytes, b"across");

        // All queue pairs of an SRQ are on its engine.
        let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
        let srq = pd.create_srq(&SrqInitAttr { attr, cookie: 0 }).expect("within limits");
        let sharing = own.each_ref().map(|cq| create(&pd, cq, cq, Some(&srq)));
        assert!(sharing.iter().all(|qp| slot(qp) == slot(&sharing[0])));
    });
}

#[test]
fn keys_are_valid_on_all_engines_until_they_are_revoked() {
    domain::on_both_paths("keys_are_valid_on_all_engines_until_they_are_revoked", || {
        let context = device("2");
        let pd = context.alloc_pd().expect("the engines start");
        let cqs = [(); 2].map(|()| context.create_cq(16, None, 0).expect("within limits"));
        // Returns a new pair; an access error ends the connection of the old one.
        let pair = || {
            let [ours, theirs] = cqs.each_ref().map(|cq| create(&pd, cq, cq, None));
            connect(&ours, &theirs);
            assert_ne!(slot(&ours), slot(&theirs));
            (ours, theirs)
        };
        let (buffer, target) = (pd.alloc_buffer(64, RIGHTS).expect("memory"), pd.alloc_buffer(64, RIGHTS));
        let target = target.expect("memory");
        let (remote_addr, r_key) = (target.addr(), target.rkey());
        let write = |qp: &Qp, r_key: Rkey| post(qp, WrOp::Write { remote_addr, r_key }, &[buffer.sge(0, 4)]);
        let (ours, theirs) = pair();
        buffer.write(0, b"keys");
        for (from, to) in [(&ours, 0), (&theirs, 8)] {
            let remote_addr = remote_addr + to;
            assert_eq!(
                post(from, WrOp::Write { remote_addr, r_key }, &[buffer.sge(0, 4)]),
                WcStatus::Success
            );
        }
        assert_eq!(post(&ours, WrOp::Read { remote_addr, r_key }, &[buffer.sge(16, 12)]), WcStatus::Success);
        let mut bytes = [0; 12];
        buffer.read(16, &mut bytes);
        assert_eq!(&bytes, b"keys\0\0\0\0keys");

        // A window that a queue pair of one engine binds is valid on the other engine, until it is bound
        // again.
        let mr = target.lkey();
        let bind = MwBind { r_key: Rkey(0), mr, addr: remote_addr, len: 8, access: Access::REMOTE_WRITE };
        let window = pd.alloc_mw(MwType::Type1).expect("room");
        let bound = |qp: &Qp| {
            let bind = MwBind { r_key: window.rkey(), ..bind };
            let key = qp.bind_mw(&window, 2, SendFlags::empty(), &bind).expect("room");
            assert_eq!(next(qp.send_cq()).status, WcStatus::Success);
            key
        };
        let first = bound(&ours);
        assert_eq!(write(&ours, first), WcStatus::Success, "the responder is on the other engine");
        assert_eq!(
            write(&theirs, first),
            WcStatus::Success,
            "the responder is on the engine that bound the window"
        );
        let second = bound(&theirs);
        assert_eq!(write(&ours, first), WcStatus::RemAccessErr);
        let (ours, theirs) = pair();
        assert_eq!(write(&theirs, first), WcStatus::RemAccessErr);
        let (ours, theirs) = {
            drop((ours, theirs));
            pair()
        };
        assert_eq!([write(&ours, second), write(&theirs, second)], [WcStatus::Success; 2]);
        drop(window);
        assert_eq!(write(&ours, second), WcStatus::RemAccessErr);

        let (ours, theirs) = {
            drop((ours, theirs));
            pair()
        };
        drop(target);
        assert_eq!(write(&ours, r_key), WcStatus::RemAccessErr);
        drop((ours, theirs));
        let (_ours, theirs) = pair();
        assert_eq!(write(&theirs, r_key), WcStatus::RemAccessErr);
    });
}

/// A work request that waits changes keys when an ACK arrives; the end of a queue pair changes them, too.
#[test]
fn key_changes_of_delayed_work_requests_reach_all_engines() {
    domain::on_both_paths("key_changes_of_delayed_work_requests_reach_all_engines", || {
        const LONG: usize = 4 << 20;
        let context = device("2");
        let pd = context.alloc_pd().expect("the engines start");
        let cqs = [(); 2].map(|()| context.create_cq(16, None, 0).expect("within limits"));
        let [ours, theirs] = cqs.each_ref().map(|cq| create(&pd, cq, cq, None));
        connect(&ours, &theirs);
        let [source, target] = [(); 2].map(|()| pd.alloc_buffer(LONG, RIGHTS).expect("memory"));
        // SAFETY: the buffer outlives the region, and no Rust reference to its bytes exists.
        let region = unsafe { pd.reg_mr(target.addr() as *mut u8, LONG, target.addr(), RIGHTS) };
        let region = region.expect("a region");

        // The bind executes when an ACK arrives: the message before it is longer than any flow window.
        let (remote_addr, r_key) = (target.addr(), target.rkey());
        let sg_list = &[source.sge(0, LONG)];
        let write = SendWr {
            wr_id: 1,
            op: WrOp::Write { remote_addr, r_key },
            sg_list,
            flags: SendFlags::empty(),
            dest: None,
        };
        let window = pd.alloc_mw(MwType::Type1).expect("room");
        let bind = MwBind {
            r_key: window.rkey(),
            mr: region.lkey(),
            addr: remote_addr,
            len: 8,
            access: Access::REMOTE_WRITE,
        };
        let enter = |state| {
            theirs.modify(&QpAttr { state, ..QpAttr::default() }, QpAttrMask::STATE).expect("permitted");
        };
        enter(QpState::Sqd);
        theirs.post_send(&write).expect("room");
        let key = theirs.bind_mw(&window, 2, SendFlags::empty(), &bind).expect("room");
        assert!(!region.has_windows(), "the bind waits for the WRITE");
        enter(QpState::Rts);
        assert_eq!([(); 2].map(|()| next(&cqs[1]).status), [WcStatus::Success; 2]);
        // Test the access first: `has_windows` also synchronizes the engines.
        let short = WrOp::Write { remote_addr, r_key: key };
        assert_eq!(post(&theirs, short, &[source.sge(0, 4)]), WcStatus::Success);
        assert!(region.has_windows());
        drop(window);

        // Destroying a queue pair unbinds its type 2 windows.
        let window = pd.alloc_mw(MwType::Type2).expect("room");
        let bind = WrOp::BindMw(MwBind { r_key: window.rkey(), ..bind });
        assert_eq!(post(&theirs, bind, &[]), WcStatus::Success);
        assert!(region.has_windows());
        drop(theirs);
        assert!(!region.has_windows());
    });
}

/// Returns a queue pair that another thread has created.
fn created_by_another_thread(context: &Context, pd: &Pd) -> Qp {
    std::thread::scope(|scope| {
        let create = || {
            let cq = context.create_cq(16, None, 0).expect("within limits");
            create(pd, &cq, &cq, None)
        };
        scope.spawn(create).join().expect("no panic")
    })
}

#[test]
fn threads_that_create_queue_pairs_get_engines() {
    domain::on_both_paths("threads_that_create_queue_pairs_get_engines", || {
        let context = device("auto");
        let most = context.comp_vectors() as usize;
        assert!((1..=Engines::MAX).contains(&most));
        let pd = context.alloc_pd().expect("the engine starts");
        let new = || {
            let cq = context.create_cq(16, None, 0).expect("within limits");
            create(&pd, &cq, &cq, None)
        };
        let own = [(); 3].map(|()| new());
        assert!(own.iter().all(|qp| slot(qp) == slot(&own[0])), "one thread has one engine");
        // A window that is bound before the second engine starts.
        let buffer = pd.alloc_buffer(64, RIGHTS).expect("memory");
        connect(&own[0], &own[1]);
        let bind = MwBind {
            r_key: Rkey(0),
            mr: buffer.lkey(),
            addr: buffer.addr(),
            len: 8,
            access: Access::REMOTE_WRITE,
        };
        let window = pd.alloc_mw(MwType::Type1).expect("room");
        let bind = MwBind { r_key: window.rkey(), ..bind };
        let key = own[0].bind_mw(&window, 2, SendFlags::empty(), &bind).expect("room");
        assert_eq!(next(own[0].send_cq()).status, WcStatus::Success);

        let theirs = created_by_another_thread(&context, &pd);
        assert_eq!(slot(&theirs) != slot(&own[0]), most > 1, "{most} engines");
        connect(&own[2], &theirs);
        let write = |qp: &Qp, r_key: Rkey, to: u64| {
            post(qp, WrOp::Write { remote_addr: buffer.addr() + to, r_key }, &[buffer.sge(32, 4)])
        };
        buffer.write(32, b"keys");
        assert_eq!(
            write(&own[2], key, 0),
            WcStatus::Success,
            "the window is valid on the engine that came later"
        );
        assert_eq!(write(&own[2], buffer.rkey(), 8), WcStatus::Success);
        assert_eq!(write(&theirs, buffer.rkey(), 16), WcStatus::Success);
        let mut bytes = [0; 24];
        buffer.read(0, &mut bytes);
        assert_eq!(&bytes, b"keys\0\0\0\0keys\0\0\0\0keys\0\0\0\0");
        // Deregistration reaches all engines.
        drop(window);
        assert_eq!(write(&own[2], key, 0), WcStatus::RemAccessErr);

        // The engine of a thread that has destroyed its queue pairs is used again.
        drop(theirs);
        let mut slots: Vec<u32> =
            (0..3 * most).map(|_| slot(&created_by_another_thread(&context, &pd))).collect();
        slots.dedup();
        assert_eq!(slots.len(), 1, "each thread has destroyed its queue pair before the next came");
        let more: Vec<Qp> = (0..3 * most).map(|_| created_by_another_thread(&context, &pd)).collect();
        let mut slots: Vec<u32> = more.iter().chain(&own).map(slot).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), most);
    });
}

#[test]
fn completion_vectors_get_engines() {
    domain::on_both_paths("completion_vectors_get_engines", || {
        let context = device("auto");
        let most = context.comp_vectors();
        let pd = context.alloc_pd().expect("the engine starts");
        let at = |vector| {
            let cq = context.create_cq_at(16, None, 0, vector).expect("within limits");
            create(&pd, &cq, &cq, None)
        };
        assert!(matches!(
            context.create_cq_at(16, None, 0, most).map_err(VerbsError::kind),
            Err(Errno::EINVAL)
        ));
        let qps: Vec<Qp> = (0..most).chain(0..most).map(at).collect();
        let slots: Vec<u32> = qps.iter().map(slot).collect();
        let (first, again) = slots.split_at(most as usize);
        assert_eq!(first, again);
        let mut different = first.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), first.len());
    });
}
