//! Fuzz targets: each takes bytes and panics if a property does not hold.
//!
//! Each module has one `run(&[u8])`. The targets in `fuzz_targets/` call it with libFuzzer's inputs.
//! `tests/seeded.rs` calls it with the checked-in corpus and with inputs of a seeded generator, so the
//! properties are checked without a fuzzer too.
//!
//! ```text
//! RUSTC_BOOTSTRAP=1 cargo fuzz run -s none --features libfuzzer qp_packets \
//!     /tmp/corpus corpus/qp_packets -- -max_total_time=300
//! cargo test -p roxie-fuzz
//! ```
//!
//! New inputs are stored in the first directory. The checked-in corpus is small, with one input per kind of
//! path:
//!
//! ```text
//! qp_packets -set_cover_merge=1 -use_counters=0 -max_len=1500 smaller /tmp/corpus
//! ```
#![forbid(unsafe_code)]

pub mod capture;
pub mod cm;
pub mod command;
mod craft;
mod draw;
pub mod findings;
pub mod hook;
mod ledger;
pub mod mad;
pub mod messages;
pub mod object;
pub mod packet;
pub mod program;
pub mod qp_packets;
pub mod rsocket;
pub mod scrape;
pub mod siblings;
pub mod trace;
