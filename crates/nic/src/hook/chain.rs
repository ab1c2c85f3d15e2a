//! A hook as a value: its stages in order.

use std::ops::Range;
use std::sync::Arc;

use bpf::{Map, Program};

use super::packet::Scratch;
use super::{HookError, HookPacket, ProgramStage, Stage, Verdict};

/// What can be attached to an ingress or egress point of a device. A packet goes through the stages in order, until
/// one does not pass it.
#[derive(Debug)]
pub struct Hook {
    name: String,
    stages: Vec<Box<dyn Stage>>,
    maps: Vec<Arc<Map>>,
}

impl Hook {
    /// A hook of native stages.
    #[must_use]
    pub fn new(name: &str, stages: Vec<Box<dyn Stage>>) -> Hook {
        Hook { name: name.to_owned(), stages, maps: Vec::new() }
    }

    /// A hook that runs one program, with maps of its own.
    ///
    /// # Errors
    /// If the program is none, or its maps cannot be had.
    pub fn program(program: &Program) -> Result<Hook, HookError> {
        let stage = ProgramStage::new(program)?;
        let maps = stage.maps().to_vec();
        Ok(Hook { maps, ..Hook::new(&program.name, vec![Box::new(stage)]) })
    }

    /// This hook's stages, then those of `next`. Names are joined by `+`.
    #[must_use]
    pub fn then(mut self, next: Hook) -> Hook {
        self.stages.extend(next.stages);
        self.maps.extend(next.maps);
        Hook { name: format!("{}+{}", self.name, next.name), ..self }
    }

    /// The name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The map of this name, to be read and written while the program runs; the first one if several programs have it.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.iter().find(|map| map.def().name == name)
    }

    /// The maps of all programs.
    #[must_use]
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// Name and value of what the stages count.
    #[must_use]
    pub fn rows(&self) -> Vec<(String, u64)> {
        self.stages.iter().flat_map(|stage| stage.rows()).collect()
    }

    /// What else a person should know of the stages.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.stages.iter().filter_map(|stage| stage.note()).collect()
    }

    /// Whether packets like the last one, which has simply passed, pass as well: see [`Stage::foresee`].
    #[inline]
    pub(super) fn foresees_pass(&self) -> bool {
        self.stages.iter().all(|stage| stage.foresee() == Some(Verdict::Pass))
    }

    /// There were such packets.
    #[inline]
    pub(super) fn repeat(&mut self, packets: u64, bytes: u64) {
        for stage in &mut self.stages {
            stage.repeat(packets, bytes);
        }
    }

    /// Runs the stages on the packet whose UDP payload is `bytes` and whose headers `scratch` has.
    #[inline]
    pub(super) fn judge(&mut self, scratch: &mut Scratch, bytes: &[u8]) -> Fate {
        let mut packet = HookPacket::new(scratch, bytes);
        let mut verdicts = self.stages.iter_mut().map(|stage| stage.run(&mut packet));
        let verdict = verdicts.find(|verdict| *verdict != Verdict::Pass).unwrap_or(Verdict::Pass);
        let HookPacket { changed, hold_ns, is_doubled, .. } = packet;
        Fate { verdict, changed, hold_ns, is_doubled }
    }
}

/// What the stages have decided about a packet.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) verdict: Verdict,
    /// Where its frame is now, if it was changed.
    pub(super) changed: Option<Range<usize>>,
    pub(super) hold_ns: u64,
    pub(super) is_doubled: bool,
}

impl Fate {
    /// It goes on as it came, now.
    #[inline]
    pub(super) fn is_plain_pass(&self) -> bool {
        self.verdict == Verdict::Pass && self.changed.is_none() && self.hold_ns == 0 && !self.is_doubled
    }
}
