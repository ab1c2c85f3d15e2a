//! The process registry: several processes share one UDP port without a daemon.
//!
//! A *domain* is the set of processes of one user (or of users that trust each other) in one network
//! namespace. They all receive on UDP 4791 through one reuseport group. Socket 0 is the *GSI queue*,
//! which every process polls. Each other socket belongs to a *slot*, which is bits 23..12 of QPNs and
//! bits 31..20 of communication ids. So a classic-BPF program that never changes (`program.rs`) can
//! steer each datagram to its process. A process claims one slot per engine, and further ones when an
//! engine has more queue pairs than a slot has numbers (`slots.rs`).
//!
//! No socket of the group may close, because the kernel would renumber the group. So the sockets live in a
//! *socket set* (`group.rs`): unread messages with socket descriptors, of which each member peeks its own.
//! The socket set lives as long as one member lives, and grows by 64 slots when no slot is free. Abstract
//! Unix names record which process owns which slot: a process claims a name atomically, and the kernel
//! frees it when the process ends. Members answer JOIN with the socket set, and forward packets that
//! reached the wrong process as FRAME (`record.rs`). The names contain a random number that is new in
//! every group, so a process of another user cannot take them beforehand (`names.rs`). Which process may
//! be a member is decided in `identity.rs`.
//!
//! The socket set also contains the disconnect journal (`journal.rs`): the disconnect notices that the peers
//! of a member get if it dies. The other members notice the death because a connection breaks (`failure.rs`).
//!
//! Two members of one user can bypass the kernel: one offers the other a ring in shared memory (`rings.rs`),
//! which lasts as long as the connection that carried the offer.
//!
//! Start with `join.rs`, then `serve.rs` and `forward.rs`.

mod domain;
mod error;
mod failure;
mod forward;
mod group;
mod holder;
pub mod identity;
mod interface;
mod join;
mod journal;
mod key;
pub mod meeting;
mod membership;
mod names;
mod program;
mod record;
mod ring_events;
mod rings;
mod serve;
mod service;
mod slots;

pub use domain::DomainConfig;
pub use error::{JoinError, Stranger, descriptors};
pub use failure::next_scan_ns;
pub use forward::ForwardOutcome;
pub use holder::PortHolder;
pub use identity::is_root;
pub use interface::{ClaimedService, Registry};
pub use join::{Found, members};
#[cfg(feature = "fuzz")]
pub use journal::check as check_journal;
pub use membership::Membership;
pub(crate) use membership::RegistryLocks;
#[cfg(feature = "fuzz")]
pub use record::check as check_record;
pub(crate) use ring_events::RingEvent;
pub(crate) use rings::{RingLink, Rings};
pub use service::{ServiceAddress, ServiceClaim, ServiceRequest};
pub use slots::FurtherSlot;
pub use transport::numbering::SLOTS;

#[cfg(test)]
mod slots_tests;
#[cfg(test)]
mod strangers_tests;
#[cfg(test)]
pub(crate) mod tests;
