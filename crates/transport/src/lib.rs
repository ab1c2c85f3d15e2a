//! The transport of a RoCEv2 device: queue pairs and connection management as values.
//!
//! Nothing here has a clock, a socket, a thread or a raw pointer: time and packets are passed in, packets and events are
//! polled out, memory is reached through the trait [`Memory`]. Read [`Qp`] first, then `requester.rs` and `responder.rs`.
//!
//! ```text
//! post_send -> wqe -> requester -> turn               handle_packet -> responder -> Memory, events
//!                       ^  retry, completer <- responses        |-> replay, reply -> turn
//! ```
#![forbid(unsafe_code)]

mod ack_policy;
mod attr;
mod cc;
pub mod cm;
mod counters;
mod emit;
mod endpoint;
mod error;
mod event;
mod fault;
mod memory;
mod qp;
mod recv_queue;
mod reorder;
mod requester;
mod responder;
mod ring;
#[cfg(test)]
mod testing;
mod time;
mod ud;
mod wc;
mod wr;

pub use attr::{
    MAX_INLINE_DATA, MAX_MSG_SZ, MAX_PACKET, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE, PathMtu, QpAttr, QpAttrMask,
    QpCap, QpConfig, QpState, QpType,
};
pub use counters::QpCounters;
pub use emit::Transmit;
pub use error::VerbsError;
pub use event::{AsyncEventKind, QpEvent};
pub use memory::{Access, AccessFault, AtomicOp, FastReg, Memory, MwBind, PdId};
pub use qp::{Backlog, Qp, TransmitQuantum};
pub use recv_queue::{RecvQueue, SrqTable};
pub use reorder::ReorderBuffer;
pub use time::{Instant, ack_timeout_ns};
pub use ud::{GRH_LEN, PacketSource};
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{AddressVector, Dest, RecvWr, SendFlags, SendWr, Sge, UdDest, WrOp};
