//! Hooks: they see every packet of the device, received and sent.
//!
//! `ingress` is between the port and the transport, `egress` between the transport and the port: a
//! transmit hook, which the kernel does not have. A [`Hook`] is a chain of [`Stage`]s, eBPF programs in
//! the user-space interpreter or native ones; its verdict decides about the packet. Programs see frames
//! that begin with the Ethernet header and end with the ICRC. A port without such bytes has them made
//! while a hook is attached that asks for them.
//!
//! | verdict | ingress | egress |
//! |---|---|---|
//! | PASS | to the transport | to the port |
//! | DROP, ABORTED, other numbers | dropped | dropped |
//! | REDIRECT | to the target, see below | to the target, see below |
//! | TX | sent to the destination in its IP header, through `egress` | dropped |
//!
//! On ingress, REDIRECT to a CPUMAP entry hands the packet to the process of this host with that slot
//! (bits 23..12 of its QPNs); a packet that came from another process goes to the transport instead.
//! REDIRECT to the device's own interface has the meaning of TX. REDIRECT to an XSKMAP gives the frame to
//! the reader (`roxie hook frames`). On egress, REDIRECT to the device's own interface has the meaning of
//! PASS, an XSKMAP again gives the frame to the reader, and all other targets drop it. TX is dropped on
//! egress as the kernel does for programs of a devmap.
//!
//! A program may change the packet, but the result is parsed again: it must have an Ethernet, an IPv4 or
//! IPv6 and a UDP header for the RoCE port, or it is dropped as malformed. On ingress the ICRC is checked
//! afterwards, so only fields that it does not cover may change (TOS, TTL, Ethernet). On egress the ICRC,
//! the last four bytes, is computed afterwards (programs read zeros), so the change reaches the peer as
//! valid. Addresses, TOS and TTL are taken from the changed IP header; the other headers are the port's
//! own.
//!
//! Taps copy packets between the hooks and the port (`tap.rs`).
//!
//! Start with `ingress.rs` and `egress.rs`. The device knows all this by the traits of [`roxie::stages`]
//! (`plug_in.rs`); [`register`] sets them for the process.

#![forbid(unsafe_code)]

mod attach;
mod chain;
mod chosen;
pub mod control;
mod copies;
mod counters;
mod data;
mod egress;
mod error;
mod faults;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod held;
mod hooks;
mod impair;
mod ingress;
mod log;
mod outgoing;
mod packet;
mod parameters;
mod plan;
mod plug_in;
mod point;
mod police;
mod program;
mod reader;
mod redirect;
mod ring;
mod sample;
mod stage;
mod tap;

pub use attach::Attach;
pub use chain::Hook;
pub use chosen::Chosen;
pub use counters::HookCounters;
pub(crate) use data::{DataAccess, DataReply, DataRequest};
pub use data::{HookMap, HookRecords, MapId};
pub use error::HookError;
pub use hooks::HookStatus;
pub(crate) use hooks::Hooks;
pub use impair::Impair;
pub use log::LogLine;
pub use packet::HookPacket;
pub use parameters::quantity;
pub use plan::HookPlan;
pub use plug_in::register;
pub use point::HookPoint;
pub use police::{Police, PoliceUnit};
pub use program::{Aborted, ProgramStage};
pub use ring::KeptFrame;
pub use stage::{Count, Stage, Target, Verdict};
pub use tap::TapFilter;

#[cfg(test)]
mod tests;
