//! XDP programs composed at run time from blocks.
//!
//! A [`Recipe`] describes what a program does with a packet. [`Select`] chooses the packets; all others pass
//! to the network stack unchanged. [`Stage`]s may drop a packet (police) or only observe it (sample). The
//! [`Action`] gives the verdict. [`Recipe::program`] assembles the program.
//!
//! Between blocks, R6 holds the context and the stack holds the parsed fields (`frame`); all other registers
//! are free. A block ends by falling through or by a jump to an exit of `emit::Emit`.

mod action;
mod checksum;
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
use error::in_range;
pub use forward::PORTS;
pub use lose::Lose;
pub use police::{ACCESS, Access, BUCKETS, Police, source_key};
pub use sample::{SAMPLE_STATE, SAMPLES, Sample, SampleHeader};
pub use select::{ADDRESSES, SLOTS, Select};

use crate::program::{Program, ProgramKind};
use crate::xdp::XdpAction;
use emit::Emit;

/// Description of a program, in the order of its steps.
///
/// ```
/// use roxie_bpf::recipe::{ACCESS, Access, COUNTERS};
/// use roxie_bpf::{Action, ProgramKind, Recipe, Select, Stage, XdpAction};
///
/// // RoCE packets of admitted sources go back to the sender, all others to the network stack.
/// let recipe = Recipe {
///     select: Select::Roce { port: 4791 },
///     stages: vec![Stage::Access(Access { default_allow: false, entries: 100 })],
///     action: Action::Reflect,
///     counters: true,
///     frags: false,
/// };
/// let program = recipe.program("reflect", ProgramKind::Xdp)?;
/// assert!(program.map(ACCESS).is_some() && program.map(COUNTERS).is_some());
///
/// assert_eq!(Recipe::verdict(XdpAction::Drop).program("drop", ProgramKind::Xdp)?.slots.len(), 2);
/// # Ok::<(), roxie_bpf::RecipeError>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recipe {
    /// Packets that the program handles; the others pass.
    pub select: Select,
    /// Steps between selection and action.
    pub stages: Vec<Stage>,
    /// Last step, which gives the verdict.
    pub action: Action,
    /// Whether to count packets and bytes per verdict, in a per-CPU array named [`COUNTERS`].
    pub counters: bool,
    /// Whether to accept packets of several fragments. All parsed headers must be in the first fragment.
    pub frags: bool,
}

/// A step between selection and action.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stage {
    /// Passes packets with a destination address that is not in the table [`ADDRESSES`], such as packets
    /// that a router forwards or packets for another interface. Needs [`Select::Ip`] or [`Select::Roce`].
    Addressed,
    /// Passes packets with a destination QPN that does not belong to this process. Bits 23..12 of the QPN
    /// are an index into the array [`SLOTS`], where 0 marks a foreign slot. Packets to QP 0 and QP 1 always
    /// pass. Needs [`Select::Roce`].
    Owned,
    /// Copies the front of the packet to user space.
    Sample(Sample),
    /// Admits or drops sources by prefix. Needs [`Select::Ip`] or [`Select::Roce`].
    Access(Access),
    /// Drops packets at random.
    Lose(Lose),
    /// Completes TCP and UDP checksums of packets that leave by a redirect or go back, which a local socket
    /// left to the device. For programs in the driver only: in the network stack the device completes them.
    Checksum,
    /// Passes packets that are longer than the MTU of the interface that they are redirected to. For programs
    /// in the network stack only: the kernel drops such packets there, but not in the driver.
    Mtu,
    /// Drops packets of a source that sends faster than allowed. Needs [`Select::Ip`] or [`Select::Roce`].
    Police(Police),
}

impl Recipe {
    /// Returns a recipe with the same verdict for every packet.
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

    /// Returns the steering recipe: RoCE packets on `port` to an address and a QPN of this process go to the
    /// AF_XDP socket of their receive queue, everything else to the network stack, also if there is no
    /// socket. `queues` is the size of the map that [`Target::Xsk`] names.
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

    /// Assembles the program. The name becomes a C identifier: 1 to 15 letters, digits and `_`.
    ///
    /// # Errors
    /// [`RecipeError`] if the name or a number is invalid, or a stage needs fields that `select` does not
    /// parse.
    pub fn program(&self, name: &str, kind: ProgramKind) -> Result<Program, RecipeError> {
        error::check_name(name)?;
        let mut emit = Emit::new(name);
        emit.prologue(self);
        self.select.emit(&mut emit)?;
        for stage in &self.stages {
            match stage {
                Stage::Addressed => select::addressed(self.select, &mut emit)?,
                Stage::Owned => select::owned(self.select, &mut emit)?,
                // At the end, when the verdict is known; with the redirect, when its target is known.
                Stage::Checksum | Stage::Mtu => {}
                Stage::Sample(sample) => sample.emit(&mut emit)?,
                Stage::Access(access) => access.emit(self.select, &mut emit)?,
                Stage::Lose(lose) => lose.emit(&mut emit)?,
                Stage::Police(police) => police.emit(self.select, &mut emit)?,
            }
        }
        self.action.emit(self.select, &mut emit)?;
        emit.exits();
        let complete = self.stages.contains(&Stage::Checksum).then(|| checksum::call(&mut emit));
        if self.counters {
            count::emit(&mut emit);
        }
        emit.asm.exit();
        if let Some(complete) = complete {
            checksum::function(&mut emit.asm, complete);
        }
        let program = emit.asm.finish().map_err(RecipeError::Asm)?;
        Ok(Program { kind, frags: self.frags, ..program })
    }
}

#[cfg(test)]
mod tests;
