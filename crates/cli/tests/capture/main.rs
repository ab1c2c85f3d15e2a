//! `roxie capture` as a program: its commands, options, outputs and exit codes.

#[path = "../../../../tests/golden/capture.rs"]
mod golden;

#[path = "../../../tools/capture/tests/files/build.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod build;

mod odd;
mod outputs;
mod overwriting;
mod wireshark;
