//! `roxie capture`: RoCEv2 traffic seen from outside, by anybody, in files.
//!
//! [`source`] reads a file record by record, `wire::capture` decodes, [`filter`] selects, [`fields`] and [`show`] present.

pub mod clock;
pub mod fields;
pub mod filter;
mod pager;
mod read;
pub mod show;
pub mod source;

use clap::{Args, Subcommand};

use crate::failure::Outcome;

/// Decode RoCEv2 traffic in capture files
///
/// Reads pcap and pcapng, whoever made them: tcpdump, Wireshark, dumpcap on a mirrored switch port, a NIC's sniffer.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Read(read::ReadArgs),
}

/// Runs the subcommand.
///
/// # Errors
/// What the user must know: the file cannot be read, or the output not written.
pub fn run(args: &CaptureArgs) -> Outcome {
    match &args.command {
        Command::Read(args) => read::run(args),
    }
}
