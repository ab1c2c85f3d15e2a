//! See `roxie_fuzz::rsocket`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::rsocket::run(data));
