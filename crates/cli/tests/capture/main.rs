//! `roxie capture` on files: every form a capture can have, damaged ones, and what real kernels said to each other.

#[path = "../../../../tests/golden/capture.rs"]
mod golden;

mod build;
mod damage;
mod formats;
mod links;
mod odd;
mod outputs;
mod overwriting;
mod styles;
mod verdicts;
mod wireshark;
