//! Two queue pairs of one process, connected without a connection manager: SEND, WRITE and READ.
//!
//! Run it with `cargo run --release -p roxie --example back_to_back`.

use std::error::Error;

use roxie::transport::{
    Access, AddressVector, PathMtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr, SendFlags, SendWr,
    Wc, WcStatus, WrOp,
};
use roxie::verbs::{Cq, Device, DeviceConfig, Qp, QpInitAttr};
use roxie::wire::{Gid, Psn, Qpn};

const PSN: u32 = 0x12_3456;

fn main() -> Result<(), Box<dyn Error>> {
    let context = Device::open(&DeviceConfig::from_env())?.context()?;
    let gid = context.gids().first().ok_or("the device has no address")?.gid;
    let pd = context.alloc_pd()?;
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (ours, theirs) = (pd.alloc_buffer(4096, all)?, pd.alloc_buffer(4096, all)?);

    let cq = context.create_cq(64, None, 0)?;
    let cap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
    let (a, b) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
    connect(&a, b.qpn(), gid, context.query_port().active_mtu)?;
    connect(&b, a.qpn(), gid, context.query_port().active_mtu)?;

    let hello = b"hello, RDMA";
    ours.write(0, hello);
    b.post_recv(&RecvWr { wr_id: 1, sg_list: &[theirs.sge(0, 4096)] })?;
    send(&a, WrOp::Send, &[ours.sge(0, hello.len())])?;
    let (sent, received) = (wait(&cq)?, wait(&cq)?);
    println!("SEND   completed: {:?} and {:?}, {} bytes", sent.opcode, received.opcode, hello.len());

    let (remote_addr, r_key) = (theirs.addr() + 1024, theirs.rkey());
    send(&a, WrOp::Write { remote_addr, r_key }, &[ours.sge(0, hello.len())])?;
    println!("WRITE  completed: {:?}", wait(&cq)?.status);

    send(&a, WrOp::Read { remote_addr, r_key }, &[ours.sge(2048, hello.len())])?;
    println!("READ   completed: {:?}", wait(&cq)?.status);

    let mut back = [0; 11];
    ours.read(2048, &mut back);
    assert_eq!(&back, hello);
    println!("the bytes that were read back: {:?}", String::from_utf8_lossy(&back));
    Ok(())
}

fn send(qp: &Qp, op: WrOp, sg_list: &[roxie::transport::Sge]) -> Result<(), Box<dyn Error>> {
    Ok(qp.post_send(&SendWr { wr_id: 2, op, sg_list, flags: SendFlags::SIGNALED, dest: None })?)
}

fn wait(cq: &Cq) -> Result<Wc, Box<dyn Error>> {
    loop {
        if let Some(wc) = cq.poll_one() {
            return if wc.status == WcStatus::Success {
                Ok(wc)
            } else {
                Err(format!("{:?}", wc.status).into())
            };
        }
    }
}

/// RESET to INIT to RTR to RTS, as three calls of `ibv_modify_qp`.
fn connect(qp: &Qp, dest_qp: Qpn, dgid: Gid, path_mtu: PathMtu) -> Result<(), Box<dyn Error>> {
    let attr = QpAttr {
        state: QpState::Init,
        port_num: 1,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        path_mtu,
        dest_qp,
        rq_psn: Psn::new(PSN),
        sq_psn: Psn::new(PSN),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid, hop_limit: 64, ..AddressVector::default() },
        ..QpAttr::default()
    };
    use QpAttrMask as M;
    qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS)?;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr.clone() }, M::STATE | rtr)?;
    let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, M::STATE | rts)?;
    Ok(())
}
