//! A RoCEv2 RDMA NIC in user space.
//!
//! [`verbs`] is the device in safe Rust, [`cm`] the connection manager; both follow the manual pages of
//! libibverbs and librdmacm. The data path is in two folders: `engine/core` and `engine/tables`.

#[cfg(test)]
#[path = "tests/both_ends/mod.rs"]
mod both_ends;
pub mod chaos;
pub mod cm;
mod comp_counter;
mod cq;
mod engine;
mod events;
pub mod finding;
mod fork;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod gid;
mod guard;
pub mod interfaces;
mod key_places;
mod keys;
mod locked;
mod moderation;
mod mr;
pub mod netdev;
mod notice;
mod open_port;
pub mod page_pool;
pub mod port;
mod printable;
pub mod private_dir;
mod qp_numbers;
pub mod raw;
pub mod recording;
mod refusal;
pub mod registry;
pub mod runtime;
pub mod sched;
mod setting;
mod shm;
mod srqs;
pub mod stages;
pub mod status;
pub mod trace;
mod traffic;
mod variable;

pub mod verbs;
pub mod xdp;

pub use bpf;
pub use notice::{notice, say};
pub use printable::printable;
pub use transport;
pub use wire;
