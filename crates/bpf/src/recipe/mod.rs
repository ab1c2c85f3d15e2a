//! XDP programs composed at run time from blocks.
//!
//! A [`Recipe`] is a list of what a program does with a packet: [`Select`] those it concerns (all others pass to the
//! network stack untouched), run [`Stage`]s that may end the journey (police) or only watch (sample), and finish
//! with an [`Action`]. [`Recipe::program`] assembles it.
//!
//! Between blocks, R6 holds the context and the stack holds what parsing found (`frame`); every other register is
//! free. A block leaves by falling through, or by jumping to one of the exits of `emit::Emit`.

mod action;
mod count;
mod emit;
mod error;
mod forward;
mod frame;
mod lose;
mod police;
mod sample;
mod select;

pub use action::{Action, Pick, Target};
pub use count::{COUNTERS, Counter};
pub use error::RecipeError;
pub use forward::PORTS;
pub use lose::Lose;
pub use police::{ACCESS, Access, BUCKETS, Police, source_key};
pub use sample::{SAMPLE_STATE, SAMPLES, Sample, SampleHeader};
pub use select::{ADDRESSES, SLOTS, Select};

use crate::program::{Program, ProgramKind};
use crate::xdp::XdpAction;
use emit::Emit;

/// What a program does, in the order in which it does it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recipe {
    /// Which packets it concerns; the others pass.
    pub select: Select,
    /// What happens to them on the way.
    pub stages: Vec<Stage>,
    /// Where they end.
    pub action: Action,
    /// Count packets and bytes by verdict, in a per-CPU array named [`COUNTERS`].
    pub counters: bool,
    /// Accept packets of several fragments; everything parsed must be in the first.
    pub frags: bool,
}

/// A step between selection and action.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stage {
    /// Packets whose destination address is not in the table [`ADDRESSES`] pass: what a router forwards, and what is for
    /// another interface. Needs [`Select::Ip`] or [`Select::Roce`].
    Addressed,
    /// Packets whose destination QPN is not ours pass: bits 23..16 of it index the array [`SLOTS`], where 0 means
    /// that the slot is not ours. QP 0 and QP 1 always pass. Needs [`Select::Roce`].
    Owned,
    /// A copy of the head of the packet goes to user space.
    Sample(Sample),
    /// Sources are let in or dropped by prefix. Needs [`Select::Ip`] or [`Select::Roce`].
    Access(Access),
    /// Packets are lost at random.
    Lose(Lose),
    /// A source that sends faster than it may is dropped. Needs [`Select::Ip`] or [`Select::Roce`].
    Police(Police),
}

impl Recipe {
    /// The same verdict for every packet.
    #[must_use]
    pub fn verdict(action: XdpAction) -> Recipe {
        Recipe {
            select: Select::All,
            stages: Vec::new(),
            action: Action::Verdict(action),
            counters: false,
            frags: false,
        }
    }

    /// RoCE packets on `port` for addresses and QPNs of ours go to the AF_XDP socket of their receive queue, everything else to the
    /// network stack; also what finds no socket there. `queues` is the size of the map [`Target::Xsk`] names.
    #[must_use]
    pub fn steer(port: u16, queues: u32) -> Recipe {
        Recipe {
            select: Select::Roce { port },
            stages: vec![Stage::Addressed, Stage::Owned],
            action: Action::Redirect {
                target: Target::Xsk,
                entries: queues,
                pick: Pick::RxQueue,
                miss: XdpAction::Pass,
            },
            counters: false,
            frags: false,
        }
    }

    /// Assembles the program. The name becomes a C identifier: letters, digits and `_`, at most 15.
    pub fn program(&self, name: &str, kind: ProgramKind) -> Result<Program, RecipeError> {
        error::check_name(name)?;
        let mut emit = Emit::new(name);
        emit.prologue(self);
        self.select.emit(&mut emit)?;
        for stage in &self.stages {
            match stage {
                Stage::Addressed => select::addressed(self.select, &mut emit)?,
                Stage::Owned => select::owned(self.select, &mut emit)?,
                Stage::Sample(sample) => sample.emit(&mut emit)?,
                Stage::Access(access) => access.emit(self.select, &mut emit)?,
                Stage::Lose(lose) => lose.emit(&mut emit)?,
                Stage::Police(police) => police.emit(self.select, &mut emit)?,
            }
        }
        self.action.emit(self.select, &mut emit)?;
        let asm = emit.epilogue(self.counters);
        let program = asm.finish().map_err(RecipeError::Asm)?;
        Ok(Program { kind, frags: self.frags, ..program })
    }
}

#[cfg(test)]
mod tests;
