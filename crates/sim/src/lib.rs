//! Whole fabrics in virtual time: 2 to 64 nodes with queue pairs, joined by a switch, driven from one `u64`.
//!
//! Goal: whatever goes wrong, each work request completes exactly once and in order, every byte is where the model says, nothing
//! else was touched, each frame is accounted for, and when the network is whole again everything ends. Method: everything that
//! happens is drawn from the seed: topology, links, work, a random subset of faults. Frames are whole, from the Ethernet header to
//! the ICRC, so damage is found by the code that finds it in reality.
//!
//! ```text
//! plan, unreliable -> Qp (crate transport) -> frame -> fabric -> ring -> frame -> Qp -> the application checks
//!                     world: who has a turn, and when           faults
//! ```
//!
//! [`run`] is all there is to call. A [`Failed`] run prints as the line that replays it.
#![forbid(unsafe_code)]

mod devices;
mod fabric;
mod fault;
mod frame;
mod memory;
mod node;
mod plan;
mod queue_pair;
mod reliable;
mod rng;
mod setup;
mod sight;
mod unreliable;
mod violation;
mod world;

use std::fmt;

use transport::QpCounters;

pub use devices::{DeviceFailed, DeviceOptions, DeviceOutcome, run_devices};
pub use fabric::{Cause, Tally};
pub use fault::{Fault, FaultList, FaultListError, Faults};
pub use memory::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY, SimMemory};
pub use rng::Rng;
pub use setup::{NODES_MAX, NODES_MIN};
pub use sight::{Sight, What};
pub use violation::{Rule, Violation};

/// What a run is.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Everything that is not said otherwise is drawn from it.
    pub seed: u64,
    /// [`NODES_MIN`] to [`NODES_MAX`].
    pub nodes: Option<usize>,
    /// What goes wrong.
    pub faults: Option<FaultList>,
}

/// A run without violation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Nodes of the fabric.
    pub nodes: usize,
    /// What went wrong.
    pub faults: Faults,
    /// What became of the frames.
    pub tally: Tally,
    /// What all queue pairs counted.
    pub counters: QpCounters,
    /// Bytes that applications moved.
    pub bytes: u64,
    /// Virtual time.
    pub elapsed_ns: u64,
    /// Queue pairs whose peer fell silent and who noticed.
    pub broken: u64,
    /// Frames and when they were sent: the same for the same options.
    pub digest: u64,
}

/// A run with a violation; shown as the command that replays it.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// Nodes of the fabric.
    pub nodes: usize,
    /// What went wrong by intention.
    pub faults: Faults,
    /// What went wrong.
    pub violation: Violation,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, faults, .. } = self;
        write!(f, "roxie sim --seed {seed:#x} --nodes {nodes} --faults {faults}")
    }
}

impl std::error::Error for Failed {}

/// Runs one fabric to its end; `watch` sees everything that happens.
///
/// # Errors
/// The first violation.
pub fn run(options: &Options, watch: Option<&mut dyn FnMut(&Sight<'_>)>) -> Result<Outcome, Box<Failed>> {
    world::run(options, watch)
}
