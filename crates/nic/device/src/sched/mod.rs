//! The scheduler: it decides when packets leave, and when a thread polls, yields, sleeps or wakes.
//!
//! | file | decides |
//! |---|---|
//! | `departure.rs` | whether a message leaves or is held, and how much one quantum carries |
//! | `queue.rs` | which queue pair is next, and how many packets the flow window and the port accept |
//! | `governor.rs` | which thread serves the port, and when it yields, spins or sleeps |
//! | `posters.rs` | whether a thread that posts spins or sleeps while another thread has the engine's lock |
//! | `tuning.rs` | nothing: every number that the others use |

mod departure;
pub(crate) mod governor;
mod posters;
mod queue;
mod tuning;

#[cfg(test)]
pub(crate) use departure::asked;
pub(crate) use departure::{Decision, Quantum, Trigger, budget_pkts, decide};
pub(crate) use governor::InlineYield;
pub(crate) use posters::Posters;
pub(crate) use queue::{FlowShare, TransmitQueue};
pub use tuning::Tuning;
