//! See `roxie_fuzz::program`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::program::run(data));
