//! `roxie capture`: RoCEv2 traffic seen from outside, by anybody, live or in files.
//!
//! `live` listens to an interface or a process and makes a file of it, [`source`] reads a file record by record, `wire::capture` decodes,
//! [`filter`] selects, [`fields`] and [`show`] present, [`analyse`] finds out what happened.

mod ahead;
pub mod analyse;
mod annotate;
pub mod clock;
pub mod fields;
pub mod filter;
mod input;
mod live;
mod pager;
mod read;
mod record;
mod report;
pub mod show;
pub mod source;
mod target;
pub mod write;

pub(crate) use live::{Place, Splitter, Wanted};

use std::io::Read;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use source::Source;

/// Record, decode and analyse RoCEv2 traffic
///
/// Listens on network interfaces and to processes, and reads pcap and pcapng, whoever made them: tcpdump, Wireshark, dumpcap on a mirrored switch
/// port, a NIC's sniffer.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Read(read::ReadArgs),
    Record(record::RecordArgs),
    #[command(alias = "analyze")]
    Analyse(analyse::AnalyseArgs),
    Annotate(annotate::AnnotateArgs),
    Report(report::ReportArgs),
}

/// Listens, and gives what comes as a capture file.
///
/// # Errors
/// Why that is not possible.
pub(crate) fn listen(place: &Place, wanted: &Wanted) -> Outcome<Source<Box<dyn Read + Send>>> {
    Source::new(Box::new(live::Live::new(place, wanted)?) as Box<dyn Read + Send>)
}

/// Runs the subcommand.
///
/// # Errors
/// What the user must know: the file cannot be read, or the output not written.
pub fn run(args: &CaptureArgs) -> Outcome<ExitCode> {
    match &args.command {
        Command::Read(args) => read::run(args).map(|()| ExitCode::SUCCESS),
        Command::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
        Command::Annotate(args) => annotate::run(args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
        Command::Analyse(args) => analyse::run(args).map(ExitCode::from),
    }
}
