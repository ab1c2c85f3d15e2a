//! The parts of the simulation.

pub mod memory;
pub mod network;
pub mod plan;
pub mod rng;
pub mod world;
