//! See `roxie_fuzz::siblings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::siblings::run(data));
