//! RoCEv2 packet captures as a library: read, record, dissect, analyse and report.
//!
//! | step | module |
//! |---|---|
//! | read pcap and pcapng files of any origin, damaged ones included | [`source`] |
//! | capture live traffic of a network interface or of a process | `live` (feature `live`, on by default) |
//! | decode packets, on a second thread for large files | [`decode`] |
//! | select packets | [`filter`] |
//! | show packets as text, by the fields that [`fields`] dissects | [`show`] |
//! | follow connections, name what went wrong | [`analyse`] |
//! | write pcapng, with findings as comments | [`write`](mod@write), [`annotate`] |
//! | plots as HTML and SVG | [`report`] |
//!
//! A line for each packet of a file, then the verdict:
//!
//! ```
//! use std::path::Path;
//!
//! use roxie_capture::analyse::Analysis;
//! use roxie_capture::paint::Colours;
//! use roxie_capture::show::{Show, Style, Times};
//! use roxie_capture::source;
//! use wire::capture::Seen;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/golden/loss-write-ack-v4.pcap");
//! let mut source = source::open(&path)?;
//! let mut show = Show::new(Style::Line, Times::Relative, Colours::None);
//! let mut analysis = Analysis::new();
//! while let Some(record) = source.next_record()? {
//!     let seen = Seen::parse(record.decode_as, record.data);
//!     let mut line = String::new();
//!     show.packet(&mut line, &record, &seen);
//!     print!("{}", Colours::None.lines(&line));
//!     analysis.feed(&record, &seen);
//! }
//! let verdict = analysis.finish(source.drops(), source.left_out());
//! println!("{}", verdict.text());
//! let first = verdict.first().expect("the ACK of this WRITE did not reach the requester");
//! assert_eq!(first.kind.name(), "lost-ack");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod analyse;
pub mod annotate;
pub mod clock;
pub mod decode;
pub mod fields;
pub mod filter;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "live")]
pub mod live;
pub mod paint;
pub mod report;
pub mod shell;
pub mod show;
pub mod source;
pub mod write;
