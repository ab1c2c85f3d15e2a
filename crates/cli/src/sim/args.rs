//! The command line of `roxie sim`.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use ::sim::{FaultList, NODES_MAX, NODES_MIN};
use clap::{Args as ClapArgs, Subcommand};
use roxie::sched::Tuning;

use super::fabric::FabricArgs;
use super::values::{seed, threads};

/// Run the transport or whole devices in virtual time with faults, and check every work request
///
/// The simulation runs in virtual time and needs no device. The seed determines the fabric (2 to 64 nodes
/// on a switch, links of 10 to 100 Gb/s), the queue pairs (RC, UC, UD, XRC), the work requests and the
/// faults. A model checks: every work request completes once, in order, with the right bytes; no other
/// memory is written; each frame is delivered, or lost for a counted cause; everything completes after the
/// network has recovered. The first violation ends the run, and the command that replays it is printed.
///
/// The faults are a random subset, or those of --faults, some with a number. drop=1% drops frames at
/// random. kth=7 drops the seventh frame of each kind. burst drops most of several frames in a row.
/// duplicate, reorder, corrupt (bits flip), truncate and delay (a link stops for a while) also take a
/// share. partition disconnects nodes for a while. vanish disconnects one node for good. rnr posts receives
/// late. full-ring makes queues short. empty-pool takes buffers from nodes. forge sends packets in the
/// name of nodes, with drawn PSNs and UDP source ports. rebind=0.1% changes source ports.
///
/// With --devices each run has 2 to 4 processes with a whole device each: verbs, engine, scheduler and
/// hooks. Their clock, threads and network are simulated; the seed also determines which thread runs
/// next. Checked as well: no thread sleeps past work that it has to do, and no queue pair starves.
#[derive(Debug, Default, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, after_long_help = include_str!("../help/sim.txt"))]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    pub(crate) part: Option<Part>,
    /// Run whole devices with applications instead of fabrics
    #[arg(long, conflicts_with_all = ["nodes", "faults", "trace"])]
    pub(crate) devices: bool,
    /// Seed of the first run; further ones use the seeds after it [default: 1]
    #[arg(long, value_name = "N", value_parser = seed)]
    pub(crate) seed: Option<u64>,
    /// Nodes of every fabric, 2 to 64 [default: by the seed, mostly 2]
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub(crate) nodes: Option<usize>,
    /// Number of runs [default: 1 with --seed, else 1000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,
    /// Faults, separated by commas, or none [default: by the seed]
    #[arg(long, value_name = "LIST")]
    pub(crate) faults: Option<FaultList>,
    /// Start runs until N frames (with --devices: packets) were sent, such as 1e9
    #[arg(long, value_name = "N", value_parser = packets, conflicts_with = "seeds")]
    pub(crate) packets: Option<u64>,
    /// Multiply tunables of every device, separated by commas, such as quantum_pkts=x0.5
    #[arg(long, value_name = "FIELD=xN", requires = "devices", value_delimiter = ',')]
    pub(crate) tuning: Vec<Scale>,
    /// Write the events of one fabric to FILE: frames if the name ends in .pcapng, else text; - for
    /// standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "packets", "json"])]
    pub(crate) trace: Option<PathBuf>,
    /// Number of runs at the same time [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Another simulation.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    Fabric(FabricArgs),
}

/// A tunable and the factor by which it is multiplied, such as `quantum_pkts=x0.5`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Scale {
    field: &'static str,
    /// The factor as the command line has it.
    factor: String,
    numerator: u64,
    denominator: u64,
}

impl Scale {
    /// Returns `tuning` with this field multiplied.
    pub(crate) fn apply(&self, tuning: Tuning) -> Tuning {
        tuning.scaled(self.field, self.numerator, self.denominator).unwrap_or(tuning)
    }
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || "write a field and a factor, such as quantum_pkts=x0.5".to_owned();
        let (name, factor) = text.split_once("=x").ok_or_else(usage)?;
        let field = Tuning::FIELDS.iter().find(|field| **field == name);
        let field = field.ok_or_else(|| format!("use one of {}", Tuning::FIELDS.join(", ")))?;
        let (whole, fraction) = factor.split_once('.').unwrap_or((factor, ""));
        let is_number = !whole.is_empty() && factor.len() <= 10;
        let numerator = format!("{whole}{fraction}").parse().ok().filter(|_| is_number);
        let numerator = numerator.filter(|numerator| *numerator > 0).ok_or_else(usage)?;
        let denominator = 10_u64.pow(fraction.len() as u32);
        Ok(Self { field, factor: factor.to_owned(), numerator, denominator })
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=x{}", self.field, self.factor)
    }
}

fn nodes(text: &str) -> Result<usize, String> {
    let nodes = text.parse().ok().filter(|nodes| (NODES_MIN..=NODES_MAX).contains(nodes));
    nodes.ok_or_else(|| format!("a number from {NODES_MIN} to {NODES_MAX}"))
}

/// Parses a whole number, also as 1e9.
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

    #[test]
    fn a_tunable_is_multiplied_by_a_decimal_factor() {
        let default = Tuning::default();
        for (text, quantum_pkts) in
            [("quantum_pkts=x0.5", 62), ("quantum_pkts=x2", 248), ("quantum_pkts=x1.25", 155)]
        {
            let scale: Scale = text.parse().expect(text);
            assert_eq!(scale.apply(default), Tuning { quantum_pkts, ..default }, "{text}");
            assert_eq!(scale.to_string(), text);
        }
        for text in [
            "",
            "quantum_pkts",
            "quantum_pkts=2",
            "quantum_pkts=x",
            "quantum_pkts=x0",
            "quantum_pkts=x.5",
            "quantum_pkts=x-1",
            "quantum_pkts=x0.00000000001",
            "quantum=x2",
        ] {
            assert!(text.parse::<Scale>().is_err(), "{text}");
        }
    }
}
