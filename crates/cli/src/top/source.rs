//! Where queue pairs are looked at: in processes, or on the wire.

use std::collections::BTreeSet;

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
        answered: usize,
    },
    /// Anybody's, as far as packets tell.
    Wire(Wire),
}

impl Source {
    /// What the command line says.
    pub(super) fn open(args: &TopArgs) -> Outcome<Self> {
        match &args.interface {
            Some(interface) => Ok(Source::Wire(Wire::open(interface)?)),
            None => Ok(Source::Processes { processes: Processes::new(&args.pid)?, answered: 0 }),
        }
    }

    /// What there is now.
    pub(super) fn look(&mut self) -> Outcome<Vec<Item>> {
        match self {
            Source::Processes { processes, answered } => {
                let looked = processes.look();
                // A process may have several engines.
                *answered = looked.iter().map(|engine| engine.pid).collect::<BTreeSet<_>>().len();
                Ok(looked.into_iter().flat_map(|engine| engine.items()).collect())
            }
            Source::Wire(wire) => wire.look(),
        }
    }

    /// What was looked at, in words.
    pub(super) fn summary(&self) -> String {
        match self {
            Source::Processes { processes, answered } => {
                let plural = if *answered == 1 { "process" } else { "processes" };
                let silent = match processes.silent() {
                    [] => String::new(),
                    [pid, ..] => format!(", {pid} does not answer"),
                };
                format!("{answered} {plural}{silent}")
            }
            Source::Wire(wire) => wire.summary(),
        }
    }
}
