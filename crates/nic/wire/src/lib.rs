//! Wire format of RoCEv2: headers, packets, connection manager messages and the invariant CRC.
//!
//! The crate converts bytes to values and values to bytes. It has no state: no allocation, no clock, no
//! socket, no unsafe code. Parsing never panics. Lengths are checked once, in [`Packet::parse`] for packets
//! and in each `parse` or `split` that takes a slice. Everything after that check works on arrays of fixed
//! size.
//!
//! All integers on the wire are big-endian, except the ICRC ([`icrc`]), which starts with its least
//! significant byte.
//!
//! # Example
//!
//! Build an RC SEND Only packet, check its ICRC as a receiver does, and print its headers:
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use roxie_wire::{Bth, IcrcHeader, Opcode, Packet, Psn, Qpn, ROCE_PORT};
//!
//! // The UDP payload from the BTH to the pad. The length without ICRC must be a multiple of 4.
//! let bth = Bth {
//!     opcode: Opcode::RC_SEND_ONLY,
//!     dest_qp: Qpn::new(0x11),
//!     psn: Psn::new(7),
//!     ack_req: true,
//!     pad_cnt: 3,
//!     ..Bth::default()
//! };
//! let mut bytes = [0; Bth::LEN];
//! bth.emit(&mut bytes);
//! let mut udp_payload = [&bytes[..], b"hello", &[0; 3]].concat();
//!
//! // The ICRC also covers the IP and UDP headers, here with IPv4 identification 0.
//! let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
//! let flow = IcrcHeader::v4(src, dst, 0xc000, ROCE_PORT);
//! let icrc = flow.icrc(0, &udp_payload);
//! udp_payload.extend(icrc.to_le_bytes());
//!
//! // The receiver's side.
//! let packet = Packet::parse(&udp_payload)?;
//! assert_eq!(flow.verify(0, &udp_payload)?, 0);
//! assert_eq!(packet.row().name, "RC SEND Only");
//! assert_eq!(packet.payload(), b"hello");
//! assert_eq!(packet.to_string(), "RC SEND Only QP=0x000011 PSN=7 AckReq Pad=3, 5 bytes");
//! # Ok::<(), roxie_wire::DropReason>(())
//! ```
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
pub mod text;

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
