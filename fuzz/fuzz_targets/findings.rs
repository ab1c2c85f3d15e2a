//! See `roxie_fuzz::findings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::findings::run(data));
