//! See `roxie_fuzz::command`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::command::run(data));
