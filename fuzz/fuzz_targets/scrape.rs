//! See `roxie_fuzz::scrape`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxie_fuzz::scrape::run(data));
