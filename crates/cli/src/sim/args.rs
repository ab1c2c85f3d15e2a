//! The command line of `roxie sim`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use ::sim::{FaultList, NODES_MAX, NODES_MIN};
use clap::Args as ClapArgs;

/// Run the transport in simulated fabrics, with faults, and check everything
///
/// In virtual time, all of it drawn from a seed: 2 to 64 nodes on a switch, links of 10 to 100 Gb/s, queue pairs (RC, UC, UD, XRC), what they
/// send, and what goes wrong. A model checks that every work request completes once and in order with the right bytes, that nothing
/// else is written, that each frame is delivered or lost for a counted cause, and that everything ends once the network is whole again.
/// No device is needed, and nothing is sent. The first violation ends it, with the command that shows it again.
///
/// Faults are a random subset per seed, or those of --faults, with a number where it is said: drop=1% loses frames by chance,
/// kth=7 the seventh of a kind, burst most of some in a row; duplicate, reorder, corrupt (bits flip), truncate and delay
/// (a link stands still) take a share as well; partition cuts nodes off for a while, vanish silences one for good, rnr posts receives late,
/// full-ring has short queues, empty-pool nodes without buffers.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  0 if every promise was kept; 1 at a violation; 2 if the command line makes no sense or the output
  cannot be written; 130 if it was interrupted: what it had seen until then is said.

Examples:
  roxie sim
          A thousand fabrics, each with faults of its own
  roxie sim --seed 0x5eed --nodes 5 --faults drop=1%,kth=7,burst
          One fabric of five nodes
  roxie sim --seed 0x5eed --trace - | less
          What happens in it, in words
  roxie sim --seed 0x5eed --trace 5eed.pcapng; roxie capture analyse 5eed.pcapng
          Its frames; lost ones have a comment that says why
  roxie sim --faults none --nodes 64 --seeds 100
          Large calm fabrics
  roxie sim --seed 1000000 --packets 1e9
          For a night: fabric after fabric until so many frames were sent")]
pub(crate) struct SimArgs {
    /// Seed of the first fabric; those after it follow [default: 1]
    #[arg(long, value_name = "N", value_parser = seed)]
    pub(crate) seed: Option<u64>,
    /// Nodes of every fabric, 2 to 64 [default: drawn, mostly 2]
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub(crate) nodes: Option<usize>,
    /// Fabrics [default: 1 with --seed, else 1000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,
    /// What goes wrong, separated by commas, or none [default: drawn]
    #[arg(long, value_name = "LIST")]
    pub(crate) faults: Option<FaultList>,
    /// As many fabrics as it takes to send so many frames, such as 1e9
    #[arg(long, value_name = "N", value_parser = packets, conflicts_with = "seeds")]
    pub(crate) packets: Option<u64>,
    /// Write what happens in one fabric: its frames if the name ends in .pcapng, else words; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "packets", "json"])]
    pub(crate) trace: Option<PathBuf>,
    /// Threads [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// One JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

fn seed(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map_err(|_| "a number below 2^64, decimal or 0x with hexadecimal digits".to_owned())
}

fn nodes(text: &str) -> Result<usize, String> {
    let nodes = text.parse().ok().filter(|nodes| (NODES_MIN..=NODES_MAX).contains(nodes));
    nodes.ok_or_else(|| format!("a number from {NODES_MIN} to {NODES_MAX}"))
}

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "a number from 1 on; without --threads there is one for each CPU".to_owned())
}

/// Whole numbers, also as 1e9.
fn packets(text: &str) -> Result<u64, String> {
    let (digits, zeros) = text.split_once('e').unwrap_or((text, "0"));
    let value = digits.parse::<u64>().ok().zip(zeros.parse().ok());
    let value = value.and_then(|(digits, zeros)| digits.checked_mul(10_u64.checked_pow(zeros)?));
    value
        .filter(|value| *value > 0)
        .ok_or_else(|| "a whole number above 0, such as 1000000 or 1e6".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_they_look_like() {
        assert_eq!((seed("17"), seed("0x5eed")), (Ok(17), Ok(0x5eed)));
        assert!(seed("-1").is_err() && seed("0x").is_err() && seed("x").is_err());
        assert_eq!((packets("1e9"), packets("25")), (Ok(1_000_000_000), Ok(25)));
        assert!(packets("0").is_err() && packets("1e99").is_err() && packets("e9").is_err());
        assert_eq!((nodes("2"), nodes("64")), (Ok(2), Ok(64)));
        assert!(nodes("1").is_err() && nodes("65").is_err());
    }
}
