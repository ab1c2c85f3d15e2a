//! See `roxie_fuzz::mad`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::mad::run(data));
