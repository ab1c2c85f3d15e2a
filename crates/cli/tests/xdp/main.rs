//! `roxie xdp` on a veth pair in a namespace of the test; needs root, otherwise skipped.

mod attaching;
mod comparing;
mod doctor;
mod driver_test;
mod entries;
mod host;
mod hosts;
mod netdevs;
mod passing;
mod refusals;
