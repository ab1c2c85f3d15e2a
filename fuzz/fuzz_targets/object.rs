//! See `roxie_fuzz::object`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::object::run(data));
