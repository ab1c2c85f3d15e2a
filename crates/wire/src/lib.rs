//! Bytes to values and back: every header of RoCEv2, the connection manager's messages, and the invariant CRC.
//!
//! This crate touches nothing but the bytes it is handed: no allocation, no clock, no socket, no unsafe.
//! Parsing never panics; lengths are checked once (in [`Packet::parse`] for RoCE, in each `parse` that takes
//! a slice otherwise), and everything behind that check works on arrays of fixed size.
//!
//! All integers on the wire are big-endian, with one exception: the ICRC ([`icrc`]) travels least
//! significant byte first.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod gid;
pub mod keys;
pub mod psn;

pub mod eth;
pub mod ip;
pub mod udp;

pub mod bth;
pub mod opcode;

pub mod aeth;
pub mod atomic;
pub mod deth;
pub mod feth;
pub mod ieth;
pub mod imm;
pub mod rdeth;
pub mod reth;
pub mod xrceth;

pub mod drop;
pub mod icrc;
pub mod packet;

pub mod cm;
pub mod mad;

pub mod rsocket;

pub mod capture;

mod bytes;

pub use aeth::{Aeth, NakCode, Syndrome, credits_of_code, rnr_timer_ns};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use cm::CmMessage;
pub use deth::Deth;
pub use drop::DropReason;
pub use eth::{EtherType, Ethernet, Mac, VlanTag};
pub use feth::Feth;
pub use gid::Gid;
pub use icrc::{FlushIcrc, IcrcHeader, icrc_of_frame};
pub use ieth::Ieth;
pub use imm::ImmDt;
pub use ip::{Ip, Ipv4, Ipv6};
pub use keys::{Lkey, PKey, QKey, Rkey};
pub use mad::{MAD_LEN, MadHeader};
pub use opcode::{ExtHeader, OPCODES, Opcode, OpcodeRow, Operation, Position, Service};
pub use packet::Packet;
pub use psn::{Msn, Psn, Qpn};
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use udp::{ROCE_PORT, Udp};
pub use xrceth::Xrceth;
