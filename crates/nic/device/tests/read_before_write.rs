//! READs followed at once by a WRITE to the same memory, on whole devices: each READ returns the bytes before
//! that WRITE (IBA 9.5).

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::time::{Duration, Instant};

use roxie::transport::{Access, QpAttr, QpCap, QpType, SendFlags, SendWr, Sge, WcStatus, WrOp};
use roxie::verbs::{Buffer, Context, Device, DeviceConfig, QpInitAttr};

const TIMEOUT: Duration = Duration::from_secs(20);
/// READs and WRITEs that are posted at once.
const ROUNDS: usize = 16;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

#[test]
fn a_read_returns_the_bytes_before_the_write_behind_it() {
    domain::on_both_paths("a_read_returns_the_bytes_before_the_write_behind_it", || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        [8, 32, 33, 1024, 4096, 65_536].into_iter().for_each(|len| rounds(&context, len));
    });
}

/// Posts a READ and a WRITE of the same `len` bytes [`ROUNDS`] times at once. The WRITE of round `i` writes
/// `i + 1`, so the READ of round `i` returns `i`.
fn rounds(context: &Context, len: usize) {
    let pd = context.alloc_pd().expect("the engine starts");
    let buffer = |len| pd.alloc_buffer(len, RIGHTS).expect("memory");
    let (remote, sources, targets): (Buffer, Buffer, Buffer) =
        (buffer(len), buffer(len * ROUNDS), buffer(len * ROUNDS));
    for round in 0..ROUNDS {
        sources.write(round * len, &vec![round as u8 + 1; len]);
    }
    let cq = context.create_cq(2 * ROUNDS as u32, None, 0).expect("within limits");
    let cap = QpCap {
        max_send_wr: 2 * ROUNDS as u32,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
    let [ours, theirs] = [(); 2].map(|()| pd.create_qp(&init).expect("within limits"));
    let attr =
        |peer| QpAttr { access: RIGHTS, max_rd_atomic: 16, max_dest_rd_atomic: 16, ..rc::attr_to(peer) };
    rc::connect(&ours, &attr(&theirs));
    rc::connect(&theirs, &attr(&ours));
    let (remote_addr, r_key) = (remote.addr(), remote.rkey());
    let mut posting = ours.begin_post();
    for round in 0..ROUNDS {
        let mut post = |op, sge: Sge| {
            let wr_id = 2 * round as u64;
            let wr = SendWr { wr_id, op, sg_list: &[sge], flags: SendFlags::empty(), dest: None };
            posting.send(&wr).expect("room");
        };
        post(WrOp::Read { remote_addr, r_key }, targets.sge(round * len, len));
        post(WrOp::Write { remote_addr, r_key }, sources.sge(round * len, len));
    }
    drop(posting);
    let until = Instant::now() + TIMEOUT;
    for _ in 0..2 * ROUNDS {
        let wc = loop {
            if let Some(wc) = cq.poll_one() {
                break wc;
            }
            assert!(Instant::now() < until, "{len} bytes: no completion");
        };
        assert_eq!(wc.status, WcStatus::Success, "{len} bytes");
    }
    for round in 0..ROUNDS {
        let mut bytes = vec![0; len];
        targets.read(round * len, &mut bytes);
        let wrong = bytes.iter().position(|byte| *byte != round as u8);
        assert_eq!(wrong, None, "{len} bytes: the READ of round {round} returned later bytes");
    }
}
