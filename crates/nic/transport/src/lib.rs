//! The transport of a RoCEv2 device: queue pairs and connection management, sans-IO.
//!
//! This crate has no clock, socket, thread or raw pointer. The owner passes time and packets in and polls
//! packets and events out; memory is reached through the trait [`Memory`]. Read [`Qp`] first, then
//! `requester/mod.rs`, `responder/mod.rs` and `ack_policy.rs`.
//!
//! ```text
//! post_send -> send queue -> requester -> transmit quantum
//!                              ^ ACKs, NAKs, READ responses of the peer
//! handle_packet -> responder -> Memory, events
//!                      |-> replay queue, ACK, NAK -> transmit quantum
//! ```
//!
//! # Example
//!
//! Two queue pairs in one thread, without a network: a SEND and a WRITE.
//!
//! ```
//! use std::cell::RefCell;
//! use std::net::Ipv4Addr;
//!
//! use roxie_transport::*;
//! use wire::{Gid, Lkey, Packet, Psn, Qpn, Rkey};
//!
//! /// One region for both sides; addresses are offsets, and every key is valid.
//! struct Region(RefCell<Vec<u8>>);
//!
//! impl Region {
//!     fn read(&self, at: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
//!         let bytes = self.0.borrow();
//!         let src = bytes.get(at as usize..).and_then(|rest| rest.get(..dst.len()));
//!         dst.copy_from_slice(src.ok_or(AccessFault::OutOfBounds)?);
//!         Ok(())
//!     }
//!
//!     fn write(&self, at: u64, src: &[u8]) -> Result<(), AccessFault> {
//!         let mut bytes = self.0.borrow_mut();
//!         let dst = bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..src.len()));
//!         dst.ok_or(AccessFault::OutOfBounds)?.copy_from_slice(src);
//!         Ok(())
//!     }
//! }
//!
//! impl Memory for Region {
//!     fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
//!         self.read(addr, dst)
//!     }
//!     fn check_local(&self, _: PdId, _: Lkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
//!         Ok(())
//!     }
//!     fn read_local(&self, _: PdId, _: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
//!         self.read(addr, dst)
//!     }
//!     fn write_local(&self, _: PdId, _: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
//!         self.write(addr, src)
//!     }
//!     fn check_remote(
//!         &self, _: PdId, _: Qpn, _: Rkey, _: u64, _: u64, _: Access,
//!     ) -> Result<(), AccessFault> {
//!         Ok(())
//!     }
//!     fn read_remote(
//!         &self, _: PdId, _: Qpn, _: Rkey, va: u64, dst: &mut [u8],
//!     ) -> Result<(), AccessFault> {
//!         self.read(va, dst)
//!     }
//!     fn write_remote(&self, _: PdId, _: Qpn, _: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
//!         self.write(va, src)
//!     }
//!     fn atomic_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
//!         Err(AccessFault::Permission)
//!     }
//!     fn invalidate(&self, _: PdId, _: Qpn, _: Rkey) -> Result<(), AccessFault> {
//!         Err(AccessFault::Permission)
//!     }
//! }
//!
//! fn gid(side: u8) -> Gid {
//!     Gid::from(Ipv4Addr::new(10, 0, 0, side))
//! }
//!
//! /// Makes queue pair `side` and connects it to queue pair `peer`.
//! fn connect(side: u8, peer: u8) -> Result<Qp, VerbsError> {
//!     let cap =
//!         QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
//!     let mut qp = Qp::new(QpConfig {
//!         qpn: Qpn::new(side.into()),
//!         ty: QpType::Rc,
//!         pd: PdId(0),
//!         cap,
//!         sq_sig_all: true,
//!         srq: false,
//!         max_path_mtu: PathMtu::M4096,
//!         equal_writes: false,
//!     })?;
//!     let attr = QpAttr {
//!         path_mtu: PathMtu::M1024,
//!         dest_qp: Qpn::new(peer.into()),
//!         rq_psn: Psn::new(7),
//!         sq_psn: Psn::new(7),
//!         access: Access::all(),
//!         av: AddressVector { dgid: gid(peer), ..AddressVector::default() },
//!         port_num: 1,
//!         timeout: 14,
//!         retry_cnt: 7,
//!         rnr_retry: 7,
//!         ..QpAttr::default()
//!     };
//!     for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
//!         let mask = QpAttrMask::required(QpType::Rc, state);
//!         qp.modify(Instant::ZERO, &QpAttr { state, ..attr.clone() }, mask)?;
//!     }
//!     Ok(qp)
//! }
//!
//! /// Passes everything that `from` sends to `to`; returns how many packets that were.
//! fn transfer(from: &mut Qp, to: &mut Qp, region: &Region, reorder: &mut ReorderBuffer) -> usize {
//!     let (now, mut buf, mut packets) = (Instant::ZERO, [0; MAX_PACKET], 0);
//!     let source = PacketSource { src: to.av().dgid, dst: from.av().dgid, ..PacketSource::default() };
//!     let mut quantum = from.transmit_quantum(now, usize::MAX);
//!     while let Some(sent) = quantum.poll(region, &mut buf) {
//!         // On the wire four bytes of ICRC follow.
//!         let packet = Packet::parse(&buf[..sent.len + 4]).expect("a packet of the queue pair");
//!         to.handle_packet(now, &packet, &source, region, None, reorder).expect("accepted");
//!         packets += 1;
//!     }
//!     to.end_of_batch(now, false);
//!     packets
//! }
//!
//! let region = Region(RefCell::new(vec![0; 16384]));
//! let mut reorder = ReorderBuffer::none();
//! let (mut a, mut b) = (connect(1, 2)?, connect(2, 1)?);
//!
//! // Side A sends "hello" from offset 0 to the receive buffer of B at 4096, and writes 3000 bytes to 8192.
//! region.write(0, b"hello").unwrap();
//! let sge = |addr, length| [Sge { addr, length, lkey: Lkey(1) }];
//! b.post_recv(&RecvWr { wr_id: 10, sg_list: &sge(4096, 64) })?;
//! let write = WrOp::Write { remote_addr: 8192, r_key: Rkey(2) };
//! for (wr_id, op, length) in [(1, WrOp::Send, 5), (2, write, 3000)] {
//!     let flags = SendFlags::SIGNALED;
//!     a.post_send(&SendWr { wr_id, op, sg_list: &sge(0, length), flags, dest: None }, &region)?;
//! }
//! assert_eq!(a.backlog().pending_packets, 4);
//!
//! while transfer(&mut a, &mut b, &region, &mut reorder) > 0 {
//!     transfer(&mut b, &mut a, &region, &mut reorder);
//! }
//!
//! let mut received = [0; 5];
//! region.read(4096, &mut received).unwrap();
//! assert_eq!(&received, b"hello");
//! region.read(8192, &mut received).unwrap();
//! assert_eq!(&received, b"hello");
//! let completions = std::iter::from_fn(|| a.poll_event()).map(|event| match event {
//!     QpEvent::SendWc(wc) => (wc.wr_id, wc.status),
//!     other => panic!("{other:?}"),
//! });
//! assert!(completions.eq([(1, WcStatus::Success), (2, WcStatus::Success)]));
//! assert!(std::iter::from_fn(|| b.poll_event()).any(|event| matches!(event, QpEvent::RecvWc { .. })));
//! # Ok::<(), VerbsError>(())
//! ```
#![forbid(unsafe_code)]

mod ack_policy;
mod attr;
mod cause;
mod cc;
pub mod chaos;
pub mod cm;
mod completion_counts;
mod counters;
mod emit;
mod endpoint;
mod error;
mod event;
mod fault;
mod in_flight;
mod memory;
pub mod numbering;
mod qp;
mod recv_queue;
pub mod refusal;
mod reorder;
mod requester;
mod responder;
mod ring;
mod split_mix;
#[cfg(test)]
#[path = "tests/testing.rs"]
mod testing;
mod time;
mod trust;
mod ud;
mod wc;
mod wc_status;
mod wr;

pub use attr::{
    MAX_INLINE_DATA, MAX_MSG_SZ, MAX_PACKET, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE, PathMtu, QpAttr, QpAttrMask,
    QpCap, QpConfig, QpState, QpType,
};
pub use cause::Cause;
pub use completion_counts::{CompletionCount, CountedOp};
pub use counters::QpCounters;
pub use emit::Transmit;
pub use endpoint::Refused;
pub use error::Errno;
pub use event::{AsyncEventKind, QpEvent};
pub use memory::{Access, AccessFault, AtomicOp, FastReg, Memory, MwBind, PdId};
pub use qp::{Backlog, PostedSend, Progress, PsnWindow, Qp, TransmitQuantum};
pub use recv_queue::{RecvQueue, RecvWqe, SrqTable};
pub use refusal::VerbsError;
pub use reorder::ReorderBuffer;
pub use split_mix::split_mix64;
pub use time::{Instant, ack_timeout_ns, further_timeout_ns};
pub use ud::{GRH_LEN, PacketSource};
pub use wc::{Wc, WcOpcode};
pub use wc_status::WcStatus;
pub use wr::{AddressVector, Dest, RecvWr, SendFlags, SendWr, Sge, UdDest, WrOp};
