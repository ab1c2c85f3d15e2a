//! The parts of the simulation.

pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod plan;
pub(crate) mod rng;
pub(crate) mod world;
