//! What the fuzz targets run: bytes in, a panic if something that must hold does not.
//!
//! Each module has one `run(&[u8])`. The targets in `fuzz_targets/` hand it libFuzzer's inputs, `tests/seeded.rs`
//! the checked-in corpus and inputs of a seeded generator, so that the same statements are checked without a fuzzer.
//!
//! ```text
//! RUSTC_BOOTSTRAP=1 cargo fuzz run -s none --features libfuzzer qp_packets /tmp/corpus corpus/qp_packets -- -max_total_time=300
//! cargo test -p roxie-fuzz
//! ```
//!
//! New inputs go to the first directory; the checked-in corpus is small on purpose, one input per kind of path:
//!
//! ```text
//! qp_packets -set_cover_merge=1 -use_counters=0 -max_len=1500 smaller /tmp/corpus
//! ```
#![forbid(unsafe_code)]

pub mod capture;
pub mod cm;
mod craft;
mod draw;
mod ledger;
pub mod mad;
pub mod messages;
pub mod packet;
pub mod program;
pub mod qp_packets;
