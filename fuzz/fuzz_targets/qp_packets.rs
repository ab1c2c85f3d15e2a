//! See `roxie_fuzz::qp_packets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::qp_packets::run(data));
