//! A hook as a value: its stages in order.

use std::ops::Range;
use std::sync::Arc;

use bpf::{Map, Program};

use super::packet::Scratch;
use super::{HookError, HookPacket, HookPoint, LogLine, ProgramStage, Stage, Verdict};
use roxie::runtime::Runtime;

/// A chain of stages that can be attached to the ingress or egress point of a device. A packet goes
/// through the stages in order, until one of them does not pass it.
#[derive(Debug)]
pub struct Hook {
    name: String,
    stages: Vec<Box<dyn Stage>>,
    maps: Vec<Arc<Map>>,
    programs: Vec<Owner>,
}

/// A program with maps.
#[derive(Debug)]
struct Owner {
    name: String,
    /// Type information (BTF), empty without.
    types: Vec<u8>,
    /// Its maps, as a range of all.
    maps: Range<usize>,
    stage: usize,
}

/// Characters of a program's name in replies to other processes; the kernel keeps 15.
const NAME_MAX: usize = 64;

impl Hook {
    /// Creates a hook of native stages.
    #[must_use]
    pub fn new(name: &str, stages: Vec<Box<dyn Stage>>) -> Hook {
        Hook { name: name.to_owned(), stages, maps: Vec::new(), programs: Vec::new() }
    }

    /// Creates a hook that runs one program, with maps of its own.
    ///
    /// # Errors
    /// If the program is invalid, or its maps cannot be created.
    pub fn program(program: &Program) -> Result<Hook, HookError> {
        let stage = ProgramStage::new(program)?;
        let maps = stage.maps().to_vec();
        let types = program.btf.as_ref().map(|btf| btf.blob.clone()).unwrap_or_default();
        let name = program.name.chars().take(NAME_MAX).collect();
        let owner = Owner { name, types, maps: 0..maps.len(), stage: 0 };
        Ok(Hook { maps, programs: vec![owner], ..Hook::new(&program.name, vec![Box::new(stage)]) })
    }

    /// Returns a hook of this hook's stages, then those of `next`. Names are joined by `+`.
    #[must_use]
    pub fn then(mut self, next: Hook) -> Hook {
        let (maps, stages) = (self.maps.len(), self.stages.len());
        self.programs.extend(next.programs.into_iter().map(|owner| Owner {
            maps: owner.maps.start + maps..owner.maps.end + maps,
            stage: owner.stage + stages,
            ..owner
        }));
        self.stages.extend(next.stages);
        self.maps.extend(next.maps);
        Hook { name: format!("{}+{}", self.name, next.name), ..self }
    }

    /// Returns the same hook with another name.
    #[must_use]
    pub fn named(self, name: &str) -> Hook {
        Hook { name: name.to_owned(), ..self }
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

    /// Returns the name of the program that has the map with this index.
    #[must_use]
    pub fn program_of(&self, map: usize) -> &str {
        self.owner(map).map_or("", |owner| &owner.name)
    }

    /// Returns the type information (BTF) of the program that has the map with this index.
    #[must_use]
    pub fn types_of(&self, map: usize) -> Option<&[u8]> {
        self.owner(map).map(|owner| &owner.types[..]).filter(|types| !types.is_empty())
    }

    fn owner(&self, map: usize) -> Option<&Owner> {
        self.programs.iter().find(|owner| owner.maps.contains(&map))
    }

    /// Appends the lines that its programs printed; returns the number of lost ones.
    pub(super) fn read_log(
        &mut self,
        point: HookPoint,
        now_ns: u64,
        room: &mut usize,
        out: &mut Vec<LogLine>,
    ) -> u64 {
        let mut all_lost = 0;
        for owner in &self.programs {
            let Some(stage) = self.stages.get_mut(owner.stage) else { continue };
            let (lines, lost) = stage.read_log(now_ns, room);
            all_lost += lost;
            out.extend(lines.into_iter().map(|(time_ns, text)| LogLine {
                time_ns,
                point,
                program: owner.name.clone(),
                text,
            }));
        }
        all_lost
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
