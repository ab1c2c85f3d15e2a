//! The source of queue pairs: processes, or the traffic of an interface.

use std::collections::BTreeSet;

use super::TopArgs;
use super::process::{Engine, Processes};
use super::table::{Device, Item};
use super::wire::Wire;
use crate::engines::UsersArgs;
use crate::failure::Outcome;

pub(super) enum Source {
    /// Processes report their queue pairs.
    Processes {
        /// The connections to the processes.
        processes: Processes,
        /// Processes that answered the last time.
        answered: usize,
        /// The devices of these processes.
        devices: Vec<Device>,
        /// The users that own the shown processes.
        users: UsersArgs,
    },
    /// Connections found in captured packets.
    Wire(Wire),
}

impl Source {
    /// Opens the source that the command line names.
    pub(super) fn open(args: &TopArgs) -> Outcome<Self> {
        match &args.interface {
            Some(interface) => Ok(Source::Wire(Wire::open(interface)?)),
            None => {
                let processes = Processes::new(&args.pid, args.users.users())?;
                Ok(Source::Processes { processes, answered: 0, devices: Vec::new(), users: args.users })
            }
        }
    }

    /// The present queue pairs with their counters.
    pub(super) fn look(&mut self) -> Outcome<Vec<Item>> {
        match self {
            Source::Processes { processes, answered, devices, .. } => {
                let looked = processes.look();
                *devices = looked.iter().map(Engine::device).collect();
                // A process may have several engines.
                *answered = looked.iter().map(|engine| engine.pid).collect::<BTreeSet<_>>().len();
                Ok(looked.into_iter().flat_map(|engine| engine.items()).collect())
            }
            Source::Wire(wire) => wire.look(),
        }
    }

    /// The devices that answered the last time; none for an interface.
    pub(super) fn devices(&self) -> &[Device] {
        match self {
            Source::Processes { devices, .. } => devices,
            Source::Wire(_) => &[],
        }
    }

    /// Number of processes of other users that are not shown.
    pub(super) fn hidden(&self) -> usize {
        match self {
            Source::Processes { processes, .. } => processes.hidden(),
            Source::Wire(_) => 0,
        }
    }

    /// A description of the source for the heading.
    pub(super) fn summary(&self) -> String {
        match self {
            Source::Processes { processes, answered, users, .. } => {
                let plural = if *answered == 1 { "process" } else { "processes" };
                let unresponsive = match processes.unresponsive() {
                    [] => String::new(),
                    [pid, ..] => format!(", {pid} does not answer"),
                };
                let hidden = users.hidden_note(processes.hidden());
                let hidden = hidden.map(|note| format!(", {note}")).unwrap_or_default();
                format!("{answered} {plural}{unresponsive}{hidden}")
            }
            Source::Wire(wire) => wire.summary(),
        }
    }
}
