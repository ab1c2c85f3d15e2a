//! Simulation of whole fabrics in virtual time: 2 to 64 nodes with queue pairs on a switch, drawn from one
//! `u64`.
//!
//! Goal: whatever faults happen, each work request completes exactly once and in order, every byte is what
//! the model expects, no other memory was written, and each frame is accounted for. After the network is
//! healed, everything ends.
//!
//! Method: the seed determines topology, links, work and a random subset of faults. Frames are complete, from
//! the Ethernet header to the ICRC, so the code that detects damage in reality detects it here.
//!
//! ```text
//! plan, unreliable -> Qp -> frame -> fabric -> ring -> frame -> Qp -> the application checks
//!    world: schedules nodes and applications; fabric: injects faults
//! ```
//!
//! Call [`run`]. A [`Failed`] run displays as the command that replays it.
//!
//! ```
//! use roxie_sim::{Options, run};
//!
//! let options = Options { seed: 7, nodes: Some(2), ..Options::default() };
//! let first = run(&options, None)?;
//! // The same options give the same run, to the last frame.
//! assert_eq!(first, run(&options, None)?);
//! println!("{} frames in {} virtual us", first.tally.sent, first.elapsed_ns / 1000);
//! # Ok::<(), Box<roxie_sim::Failed>>(())
//! ```
#![forbid(unsafe_code)]

mod cause;
mod datacentre;
mod devices;
mod fabric;
mod fault;
mod forger;
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

pub use cause::Cause;
pub use datacentre::{
    Bytes, Collective, Kind, Mix, Percentiles, Rate, Recovery, Results, RunProgress, Series, Shape,
    SizeClass, Spec, SpecError, Tally as FrameTally, Time, Workload, run_datacentre,
};
pub use devices::{
    DeviceFailed, DeviceOptions, DeviceOutcome, PausedSide, PausedVerb, Pauses, Retransmissions, run_devices,
    run_pauses,
};
pub use fabric::Tally;
pub use fault::{Fault, FaultList, FaultListError, Faults};
pub use memory::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY, SimMemory};
pub use rng::Rng;
pub use setup::{NODES_MAX, NODES_MIN};
pub use sight::{Sight, What};
pub use violation::{Rule, Violation};

/// Parameters of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Seed of everything that the other fields leave open.
    pub seed: u64,
    /// Number of nodes, [`NODES_MIN`] to [`NODES_MAX`]; drawn if `None`.
    pub nodes: Option<usize>,
    /// Faults that happen; drawn if `None`.
    pub faults: Option<FaultList>,
}

/// Result of a run without violation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Number of nodes.
    pub nodes: usize,
    /// Faults that happened.
    pub faults: Faults,
    /// Number of frames, by what happened to them.
    pub tally: Tally,
    /// Sum of the counters of all queue pairs.
    pub counters: QpCounters,
    /// Bytes that applications transferred.
    pub bytes: u64,
    /// Virtual time at the end, in nanoseconds.
    pub elapsed_ns: u64,
    /// Queue pairs that detected that their peer had vanished.
    pub broken: u64,
    /// Digest of all frames and their sending times. It is equal for equal options.
    pub digest: u64,
}

/// A run with a violation. It displays as the command that replays it.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Seed of the run.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Faults that were injected.
    pub faults: Faults,
    /// The first violation.
    pub violation: Violation,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, faults, .. } = self;
        write!(f, "roxie sim --seed {seed:#x} --nodes {nodes} --faults {faults}")
    }
}

impl std::error::Error for Failed {}

/// Runs one fabric to its end. `watch` is called for every event.
///
/// # Errors
/// [`Failed`] with the first violation.
pub fn run(options: &Options, watch: Option<&mut dyn FnMut(&Sight<'_>)>) -> Result<Outcome, Box<Failed>> {
    world::run(options, watch)
}
