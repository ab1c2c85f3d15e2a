//! The command line of `roxie xdp map` and `roxie hook map`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// Read and change the maps of XDP programs while they run
///
/// Values are shown by the types of the program (BTF, clang -g), otherwise as numbers or bytes. Keys and
/// values are given as numbers (12, 0x1f), several of 4 or 8 bytes or the members of a structure in order
/// (1+2, 10.0.0.1+80), constants of an enumeration, addresses, prefixes, interface names (eth0, in device
/// maps), or bytes (hex:00ff).
#[derive(Debug, ClapArgs)]
pub(crate) struct MapArgs<T: ClapArgs> {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: MapCommand<T>,
}

/// Subcommands of `map`.
#[derive(Debug, Subcommand)]
pub(crate) enum MapCommand<T: ClapArgs> {
    /// List the maps
    #[command(visible_alias = "show")]
    List {
        #[command(flatten)]
        target: T,
        /// Print one JSON array instead of lines
        #[arg(long)]
        json: bool,
    },
    /// Show one entry, or all; of an array only the entries that are not zero
    #[command(visible_aliases = ["dump", "lookup"])]
    Get {
        #[command(flatten)]
        target: T,
        /// Name of the map, or its number in the kernel
        map: String,
        /// Key of one entry; an address in a table of prefixes finds the longest one that has it
        key: Option<String>,
        /// Show all entries of an array, also those that are zero
        #[arg(long)]
        zeros: bool,
        /// Print one JSON array instead of lines
        #[arg(long)]
        json: bool,
    },
    /// Set an entry
    #[command(visible_alias = "update")]
    Set {
        #[command(flatten)]
        target: T,
        /// Name of the map, or its number in the kernel
        map: String,
        /// Key of the entry
        key: String,
        /// New value; in a per-CPU map it is set for every CPU. Of a program array FILE.o:PROGRAM
        value: String,
    },
    /// Delete an entry
    Delete {
        #[command(flatten)]
        target: T,
        /// Name of the map, or its number in the kernel
        map: String,
        /// Key of the entry
        key: String,
    },
}

/// Options of the commands that show records.
#[derive(Debug, ClapArgs)]
pub(crate) struct RecordsArgs {
    /// Only this map [default: all ring buffers and perf event arrays]
    #[arg(long, value_name = "NAME")]
    pub(crate) map: Option<String>,
    /// Show records as this structure of the program (BTF)
    #[arg(long = "type", value_name = "STRUCT")]
    pub(crate) type_name: Option<String>,
    /// Print JSON objects instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Write samples to a capture file (pcap, nanoseconds) instead; - for standard output
    #[arg(long, short, value_name = "FILE", conflicts_with = "json")]
    pub(crate) write: Option<PathBuf>,
    /// End after N records
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}
