//! The source of queue pairs: processes, or the traffic of an interface.

use std::collections::BTreeSet;

use super::TopArgs;
use super::item::Item;
use super::process::{Engine, Processes};
use super::wire::Wire;
use crate::engines::UsersArgs;
use crate::failure::Outcome;

pub(super) enum Source {
    /// Processes of these users report their queue pairs.
    Processes(Processes, UsersArgs),
    /// Connections found in captured packets.
    Wire(Wire),
}

/// What a source has at one time.
pub(super) struct Look {
    /// The queue pairs with their counters.
    pub(super) items: Vec<Item>,
    /// A description of the source for the heading.
    pub(super) summary: String,
    /// Number of processes of other users that are not shown.
    pub(super) hidden: usize,
    /// Ids of the processes that did not answer.
    pub(super) unresponsive: Vec<u32>,
    /// The devices that answered, without their queue pairs; none for an interface.
    pub(super) devices: Vec<Engine>,
}

impl Source {
    /// Opens the source that the command line names.
    pub(super) fn open(args: &TopArgs) -> Outcome<Self> {
        match &args.interface {
            Some(interface) => Wire::open(interface).map(Source::Wire),
            None => Ok(Source::Processes(Processes::new(&args.pid, args.users.users())?, args.users)),
        }
    }

    /// The present queue pairs and devices.
    pub(super) fn look(&mut self) -> Outcome<Look> {
        match self {
            Source::Processes(processes, users) => Ok(look_at(processes, *users)),
            Source::Wire(wire) => {
                let (items, summary) = (wire.look()?, wire.summary());
                Ok(Look { items, summary, hidden: 0, unresponsive: Vec::new(), devices: Vec::new() })
            }
        }
    }
}

fn look_at(processes: &mut Processes, users: UsersArgs) -> Look {
    let mut devices = processes.look();
    // A process may have several engines.
    let answered = devices.iter().map(|engine| engine.pid).collect::<BTreeSet<_>>().len();
    let plural = if answered == 1 { "process" } else { "processes" };
    let unresponsive = processes.unresponsive().to_vec();
    let silent = unresponsive.first().map(|pid| format!(", {pid} does not answer"));
    let hidden = processes.hidden();
    let note = users.hidden_note(hidden).map(|note| format!(", {note}"));
    let notes: String = silent.into_iter().chain(note).collect();
    let items = devices.iter_mut().flat_map(Engine::take_items).collect();
    Look { items, summary: format!("{answered} {plural}{notes}"), hidden, unresponsive, devices }
}
