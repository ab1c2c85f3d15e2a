//! Where queue pairs are looked at: in processes, or on the wire.

use super::TopArgs;
use super::process::Processes;
use super::table::Item;
use super::wire::Wire;
use crate::failure::Outcome;

/// See the module documentation.
pub(super) enum Source {
    /// Each process tells of its own.
    Processes {
        /// Them.
        processes: Processes,
        /// How many answered the last time.
        engines: usize,
    },
    /// Anybody's, as far as packets tell.
    Wire(Wire),
}

impl Source {
    /// What the command line says.
    pub(super) fn open(args: &TopArgs) -> Outcome<Self> {
        match &args.interface {
            Some(interface) => Ok(Source::Wire(Wire::open(interface)?)),
            None => Ok(Source::Processes { processes: Processes::new(&args.pid)?, engines: 0 }),
        }
    }

    /// What there is now.
    pub(super) fn look(&mut self) -> Outcome<Vec<Item>> {
        match self {
            Source::Processes { processes, engines } => {
                let looked = processes.look();
                *engines = looked.len();
                Ok(looked.into_iter().flat_map(|engine| engine.items()).collect())
            }
            Source::Wire(wire) => wire.look(),
        }
    }

    /// What was looked at, in words.
    pub(super) fn summary(&self) -> String {
        match self {
            Source::Processes { processes, engines } => {
                let plural = if *engines == 1 { "process" } else { "processes" };
                let silent = match processes.silent() {
                    [] => String::new(),
                    [pid, ..] => format!(", {pid} does not answer"),
                };
                format!("{engines} {plural}{silent}")
            }
            Source::Wire(wire) => wire.summary(),
        }
    }
}
