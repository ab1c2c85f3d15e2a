//! What the `roxie` program can do with captured packets, as a library: its tests and the fuzz targets use it too.
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
