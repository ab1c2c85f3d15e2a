//! `roxie xdp` on a veth pair in a namespace of the test; needs root, otherwise skipped.

mod attaching;
mod comparing;
mod driver_test;
mod host;
mod passing;
mod refusals;
