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

mod attr;
mod backlog;
mod cc;
pub mod cm;
mod completer;
mod counters;
mod emit;
mod endpoint;
mod error;
mod event;
mod fault;
mod flush;
mod local;
mod memory;
mod modify;
mod patience;
mod peer;
mod qp;
mod recv_queue;
mod reorder;
mod replay;
mod reply;
mod requester;
mod resend;
mod responder;
mod retry;
mod ring;
mod rtt;
mod scoreboard;
mod segment;
#[cfg(test)]
mod testing;
mod time;
mod transition;
mod turn;
mod uc;
mod ud;
mod unasked;
mod wc;
mod wqe;
mod wr;

pub use attr::{
    MAX_INLINE_DATA, MAX_MSG_SZ, MAX_PACKET, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE, PathMtu, QpAttr, QpAttrMask,
    QpCap, QpConfig, QpState, QpType,
};
pub use backlog::Backlog;
pub use counters::QpCounters;
pub use emit::Transmit;
pub use error::VerbsError;
pub use event::{AsyncEventKind, QpEvent};
pub use memory::{Access, AccessFault, AtomicOp, FastReg, Memory, MwBind, PdId};
pub use qp::Qp;
pub use recv_queue::{RecvQueue, SrqTable};
pub use reorder::ReorderBuffer;
pub use time::{Instant, ack_timeout_ns};
pub use turn::Turn;
pub use ud::{GRH_LEN, PacketSource};
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{AddressVector, Dest, RecvWr, SendFlags, SendWr, Sge, UdDest, WrOp};
