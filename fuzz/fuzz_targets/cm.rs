//! See `roxie_fuzz::cm`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::cm::run(data));
