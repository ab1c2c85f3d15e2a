//! The library on files: every form of a capture, damaged files, and captures of real kernels with known
//! faults.

#[path = "../../../../../tests/golden/capture.rs"]
mod golden;

mod build;
mod causes;
mod compressed;
mod damage;
mod formats;
mod fragments;
mod honest;
mod joined;
mod late;
mod links;
mod senders;
mod styles;
mod synth;
mod undecoded;
mod verdicts;
