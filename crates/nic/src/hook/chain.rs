//! A hook as a value: its stages in order.

use std::ops::Range;
use std::sync::Arc;

use bpf::{Map, Program};

use super::packet::Scratch;
use super::{HookError, HookPacket, ProgramStage, Stage, Verdict};
use crate::runtime::Runtime;

/// A chain of stages that can be attached to the ingress or egress point of a device. A packet goes
/// through the stages in order, until one of them does not pass it.
#[derive(Debug)]
pub struct Hook {
    name: String,
    stages: Vec<Box<dyn Stage>>,
    maps: Vec<Arc<Map>>,
}

impl Hook {
    /// Creates a hook of native stages.
    #[must_use]
    pub fn new(name: &str, stages: Vec<Box<dyn Stage>>) -> Hook {
        Hook { name: name.to_owned(), stages, maps: Vec::new() }
    }

    /// Creates a hook that runs one program, with maps of its own.
    ///
    /// # Errors
    /// If the program is invalid, or its maps cannot be created.
    pub fn program(program: &Program) -> Result<Hook, HookError> {
        let stage = ProgramStage::new(program)?;
        let maps = stage.maps().to_vec();
        Ok(Hook { maps, ..Hook::new(&program.name, vec![Box::new(stage)]) })
    }

    /// Returns a hook of this hook's stages, then those of `next`. Names are joined by `+`.
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

    /// Returns the map of this name, for access while the program runs; the first one if several programs
    /// have it.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.iter().find(|map| map.def().name == name)
    }

    /// Returns the maps of all programs.
    #[must_use]
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// Names and values of the stages' counters.
    #[must_use]
    pub fn rows(&self) -> Vec<(String, u64)> {
        self.stages.iter().flat_map(|stage| stage.rows()).collect()
    }

    /// Further information about the stages, for people.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.stages.iter().filter_map(|stage| stage.note()).collect()
    }

    /// Whether packets like the last one, which was passed unchanged, are passed too: see
    /// [`Stage::foresee`].
    #[inline]
    pub(super) fn foresees_pass(&self) -> bool {
        self.stages.iter().all(|stage| stage.foresee() == Some(Verdict::Pass))
    }

    /// Tells the stages that there were such packets.
    #[inline]
    pub(super) fn repeat(&mut self, packets: u64, bytes: u64) {
        for stage in &mut self.stages {
            stage.repeat(packets, bytes);
        }
    }

    /// Runs the stages on the packet with UDP payload `bytes` and the headers in `scratch`.
    #[inline]
    pub(super) fn judge(&mut self, scratch: &mut Scratch, runtime: &Runtime, bytes: &[u8]) -> Fate {
        let mut packet = HookPacket::new(scratch, runtime, bytes);
        let mut verdicts = self.stages.iter_mut().map(|stage| stage.run(&mut packet));
        let verdict = verdicts.find(|verdict| *verdict != Verdict::Pass).unwrap_or(Verdict::Pass);
        let HookPacket { changed, hold_ns, is_doubled, .. } = packet;
        Fate { verdict, changed, hold_ns, is_doubled }
    }
}

/// The decision of the stages about a packet.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) verdict: Verdict,
    /// Position of the frame in the scratch buffer, if it was changed.
    pub(super) changed: Option<Range<usize>>,
    pub(super) hold_ns: u64,
    pub(super) is_doubled: bool,
}

impl Fate {
    /// Whether the packet continues unchanged and at once.
    #[inline]
    pub(super) fn is_plain_pass(&self) -> bool {
        self.verdict == Verdict::Pass && self.changed.is_none() && self.hold_ns == 0 && !self.is_doubled
    }
}
