//! Tools of the whole-system tests: built binaries, network namespaces, and processes that always end.
#![forbid(unsafe_code)]

pub mod binaries;
pub mod durations;
pub mod examples;
pub mod harness;
pub mod lab;
pub mod main_thread;
pub mod pair;
pub mod place;
pub mod process;
pub mod random;
pub mod recording;
pub mod suite;
pub mod ucx;
pub mod wireshark;
