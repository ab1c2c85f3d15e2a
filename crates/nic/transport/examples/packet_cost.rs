//! What the transport costs per packet, without ports and ICRC: two queue pairs in one thread, ACKs once per
//! batch.
//!
//! `cargo run --release -p roxie-transport --example packet_cost`
#![expect(clippy::disallowed_methods, reason = "a measurement needs a clock; the library has none")]

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant as Clock};

use roxie_transport::{
    Access, AccessFault, AddressVector, AtomicOp, Instant, MAX_PACKET, Memory, PacketSource, PathMtu, PdId,
    Qp, QpAttr, QpAttrMask as M, QpCap, QpConfig, QpState, QpType, ReorderBuffer, SendFlags, SendWr, Sge,
    WrOp,
};
use wire::{Gid, Lkey, Packet, Psn, Qpn, Rkey};

const BATCH: usize = 32;
const ROUNDS: usize = 20_000;

/// One region that every key opens.
struct Region(RefCell<Vec<u8>>);

impl Region {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let at = addr as usize;
        let bytes = self.0.borrow();
        dst.copy_from_slice(bytes.get(at..at + dst.len()).ok_or(AccessFault::OutOfBounds)?);
        Ok(())
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        let at = addr as usize;
        let mut bytes = self.0.borrow_mut();
        bytes.get_mut(at..at + src.len()).ok_or(AccessFault::OutOfBounds)?.copy_from_slice(src);
        Ok(())
    }
}

impl Memory for Region {
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        self.read(addr, dst)
    }
    fn check_local(&self, _: PdId, _: Lkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    fn read_local(&self, _: PdId, _: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        self.read(addr, dst)
    }
    fn write_local(&self, _: PdId, _: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        self.write(addr, src)
    }
    fn check_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    fn read_remote(&self, _: PdId, _: Qpn, _: Rkey, va: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        self.read(va, dst)
    }
    fn write_remote(&self, _: PdId, _: Qpn, _: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
        self.write(va, src)
    }
    fn atomic_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        Err(AccessFault::Permission)
    }
    fn invalidate(&self, _: PdId, _: Qpn, _: Rkey) -> Result<(), AccessFault> {
        Err(AccessFault::Permission)
    }
}

fn gid(side: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, side))
}

fn connected(side: u8, peer: u8) -> Qp {
    let cap =
        QpCap { max_send_wr: 256, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
    let mut qp = Qp::new(QpConfig {
        qpn: Qpn::new(side.into()),
        ty: QpType::Rc,
        pd: PdId(0),
        cap,
        sq_sig_all: false,
        srq: false,
        max_path_mtu: PathMtu::M4096,
        equal_writes: false,
    })
    .expect("small sizes");
    let attr = QpAttr {
        path_mtu: PathMtu::M1024,
        dest_qp: Qpn::new(peer.into()),
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        access: Access::all(),
        av: AddressVector { dgid: gid(peer), ..AddressVector::default() },
        port_num: 1,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    for (state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        ),
        (QpState::Rts, M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC),
    ] {
        qp.modify(Instant::ZERO, &QpAttr { state, ..attr.clone() }, mask | M::STATE).expect("a valid step");
    }
    qp
}

/// Nanoseconds per request packet: post, transmit, receive, acknowledge (a batch shares the ACKs).
fn measure(len: u32, op: WrOp) -> [f64; 4] {
    let region = Region(RefCell::new(vec![0; 1 << 20]));
    let (mut a, mut b) = (connected(1, 2), connected(2, 1));
    let mut reorder = ReorderBuffer::none();
    let from_a = PacketSource { src: gid(1), src_port: 0xc000, dst: gid(2), tos: 0, ttl: 64 };
    let from_b = PacketSource { src: gid(2), src_port: 0xc000, dst: gid(1), tos: 0, ttl: 64 };
    let mut buffers = vec![[0; MAX_PACKET]; BATCH * 4 + 1];
    let mut lengths = vec![0; BATCH * 4 + 1];
    let sge = [Sge { addr: 64, length: len, lkey: Lkey(1) }];
    let now = Instant::ZERO;
    let mut spent = [Duration::ZERO; 4];
    let mut packets = 0;
    for _ in 0..ROUNDS {
        let t0 = Clock::now();
        for i in 0..BATCH {
            let flags = if i == BATCH - 1 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr { wr_id: i as u64, op, sg_list: &sge, flags, dest: None };
            a.post_send(&wr, &region).expect("there is room");
        }
        let t1 = Clock::now();
        let mut count = 0;
        let mut quantum = a.transmit_quantum(now, usize::MAX);
        while let Some(transmit) = quantum.poll(&region, &mut buffers[count]) {
            lengths[count] = transmit.len + 4;
            count += 1;
        }
        packets += count;
        let t2 = Clock::now();
        for (buffer, len) in buffers.iter().zip(&lengths).take(count) {
            let packet = Packet::parse(&buffer[..*len]).expect("a packet");
            b.handle_packet(now, &packet, &from_a, &region, None, &mut reorder).expect("accepted");
        }
        b.end_of_batch(now, false);
        let t3 = Clock::now();
        let mut ack = [0; MAX_PACKET];
        while let Some(transmit) = b.poll_transmit(now, &region, usize::MAX, &mut ack) {
            let packet = Packet::parse(&ack[..transmit.len + 4]).expect("a packet");
            a.handle_packet(now, &packet, &from_b, &region, None, &mut reorder).expect("accepted");
        }
        a.end_of_batch(now, false);
        while a.poll_event().is_some() {}
        assert!(a.is_send_idle());
        for (sum, time) in spent.iter_mut().zip([t1 - t0, t2 - t1, t3 - t2, t3.elapsed()]) {
            *sum += time;
        }
    }
    spent.map(|time| time.as_nanos() as f64 / packets as f64)
}

fn main() {
    let write = WrOp::Write { remote_addr: 4096, r_key: Rkey(1) };
    println!("ns per packet           post  transmit   receive       ack");
    for len in [8, 64, 1024, 4096] {
        let [post, transmit, receive, ack] = measure(len, write);
        println!("WRITE {len:>5} bytes  {post:>9.1} {transmit:>9.1} {receive:>9.1} {ack:>9.1}");
    }
}
