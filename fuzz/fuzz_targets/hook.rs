//! See `roxie_fuzz::hook`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::hook::run(data));
