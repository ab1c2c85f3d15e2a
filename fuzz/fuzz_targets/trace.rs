//! See `roxie_fuzz::trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::trace::run(data));
