//! The command line of `roxie xdp map` and `roxie hook map`.

use clap::{Args as ClapArgs, Subcommand};

/// Read and change the maps of XDP programs while they run
///
/// Values are shown by the types of the program (BTF, clang -g), otherwise as numbers or bytes. Keys and
/// values are given as numbers (12, 0x1f), several of 4 or 8 bytes or the members of a structure in order
/// (1+2), constants of an enumeration, addresses, prefixes, interface names (eth0, in device maps), or bytes
/// (hex:00ff).
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
        /// Name of the map
        map: String,
        /// Key of one entry
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
        /// Name of the map
        map: String,
        /// Key of the entry
        key: String,
        /// New value; in a per-CPU map it is set for every CPU
        value: String,
    },
    /// Delete an entry
    Delete {
        #[command(flatten)]
        target: T,
        /// Name of the map
        map: String,
        /// Key of the entry
        key: String,
    },
}
