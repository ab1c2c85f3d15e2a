//! `roxie xdp` as people call it, on a veth pair in a namespace that goes with the test; as root, else skipped.

mod attaching;
mod driver_test;
mod host;
mod refusals;
