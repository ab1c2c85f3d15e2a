//! The capture commands of `roxie` as a library, for its tests and the fuzz targets.
#![forbid(unsafe_code)]

pub mod capture;
pub mod ending;
pub mod engines;
pub mod failure;
pub mod interop;
pub mod metrics;
pub mod netdev;
pub mod terminal;
pub mod top;
