//! An eBPF program as a stage.

use std::sync::Arc;

use bpf::vet::{Objection, vet};
use bpf::vm::{Env, Fault, Image, Machine, Redirect, Replay, RxHints};
use bpf::{Map, MapError, MapKind, Program, UpdateMode, XdpAction};

use super::log::Log;
use super::packet::PAYLOAD_AT;
use super::{HookError, HookPacket, Stage, Target, Verdict};
use roxie::registry::SLOTS;
use roxie::runtime::Runtime;
use sys::random_u64;

/// Runs a program in the user-space interpreter. Per-CPU maps have a single value, because the engine's
/// lock admits one thread; a CPUMAP has an entry for every process of the host.
#[derive(Debug)]
pub struct ProgramStage {
    image: Image,
    maps: Vec<Arc<Map>>,
    machine: Machine,
    replay: Replay,
    /// State of xorshift64*; never 0.
    random: u64,
    /// The verdict, if the program always returns the same one.
    constant: Option<Verdict>,
    faults: u64,
    aborted: Option<Aborted>,
    log: Log,
    /// For messages about the program.
    program: Program,
}

/// Why a packet was ABORTED for the first time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Aborted {
    /// The program made an invalid access, and was ended.
    Fault(Fault),
    /// It returned ABORTED.
    Returned,
    /// The packet is longer than any valid one.
    TooLong,
}

impl ProgramStage {
    /// Prepares the program, with new maps.
    ///
    /// # Errors
    /// If the interpreter refuses the program, or would abort it for every packet that reaches some
    /// instruction; if a map cannot be created.
    pub fn new(program: &Program) -> Result<ProgramStage, HookError> {
        let bytes = program.maps.iter().map(|def| def.memory_bytes(1)).fold(0, u64::saturating_add);
        if let Some(def) = program.maps.last().filter(|_| bytes > MapError::BYTES_MAX) {
            return Err(HookError::Map { name: def.name.clone(), error: MapError::NoMemory });
        }
        let new_map =
            |def| Map::new(def, 1).map_err(|error| HookError::Map { name: def.name.clone(), error });
        let maps: Vec<Arc<Map>> = program.maps.iter().map(new_map).collect::<Result<_, _>>()?;
        for map in maps.iter().filter(|map| map.def().kind == MapKind::Cpumap) {
            fill_cpumap(map).map_err(|error| HookError::Map { name: map.def().name.clone(), error })?;
        }
        let image = Image::new(program, maps.clone())
            .map_err(|error| HookError::Load { name: program.name.clone(), error })?;
        let mut objections = vet(program).into_iter();
        if let Some(error) = objections.find(Objection::is_fatal) {
            return Err(HookError::Vet { name: program.name.clone(), error });
        }
        let constant = image.constant().map(|number| verdict(number, Target::Nowhere));
        Ok(ProgramStage {
            image,
            maps,
            machine: Machine::new(0),
            replay: Replay::default(),
            random: random_u64() | 1,
            constant,
            faults: 0,
            aborted: None,
            log: Log::default(),
            program: program.clone(),
        })
    }

    /// The program's maps, in its order.
    #[must_use]
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// Why a packet was ABORTED for the first time, if one was.
    #[must_use]
    pub fn aborted(&self) -> Option<Aborted> {
        self.aborted
    }
}

impl ProgramStage {
    /// The target of a redirect: an entry of a CPUMAP is a process, by its key; one of a DEVMAP an
    /// interface, by its value; one of an XSKMAP the reader.
    fn target(&self, redirect: Option<Redirect>) -> Target {
        match redirect {
            Some(Redirect::Interface(ifindex)) => Target::Interface(ifindex),
            Some(Redirect::Map { map, key, value, flags: miss @ 0..4 }) => {
                match self.image.map(map).map(|map| map.def().kind) {
                    Some(MapKind::Cpumap) => {
                        let passes = miss == XdpAction::Pass.number().into();
                        Target::Slot { slot: key, passes }
                    }
                    Some(MapKind::Xskmap) => Target::Ring(key),
                    Some(MapKind::Devmap | MapKind::DevmapHash) => Target::Interface(value as u32),
                    _ => Target::Nowhere,
                }
            }
            // A redirect to several devices has no target.
            Some(Redirect::Map { .. }) | None => Target::Nowhere,
        }
    }
}

impl Stage for ProgramStage {
    #[inline]
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict {
        if let Some(verdict) = self.constant {
            return verdict;
        }
        let Self { machine, image, replay, random, log, .. } = self;
        let world = &mut World { random, runtime: packet.runtime, log, is_received: packet.is_received() };
        // Longer than any valid packet: the transport would refuse it too.
        let Some(outcome) = packet.with_frame(|buff| machine.run_or_replay(image, replay, buff, world))
        else {
            self.aborted.get_or_insert(Aborted::TooLong);
            return Verdict::Aborted;
        };
        if let Some(fault) = outcome.fault {
            self.faults += 1;
            self.aborted.get_or_insert(Aborted::Fault(fault));
        }
        let verdict = verdict(outcome.returned, self.target(outcome.redirect));
        if verdict == Verdict::Aborted {
            self.aborted.get_or_insert(Aborted::Returned);
        }
        verdict
    }

    #[inline]
    fn foresee(&self) -> Option<Verdict> {
        let foreseen = || self.replay.foresee(PAYLOAD_AT).map(|number| verdict(number, Target::Nowhere));
        self.constant.or_else(foreseen)
    }

    #[inline]
    fn repeat(&mut self, packets: u64, _bytes: u64) {
        if self.constant.is_none() {
            self.replay.repeat(&self.image, packets);
        }
    }

    fn rows(&self) -> Vec<(String, u64)> {
        vec![("faults".to_owned(), self.faults)]
    }

    fn read_log(&mut self, now_ns: u64, room: &mut usize) -> (Vec<(u64, String)>, u64) {
        self.log.read(now_ns, room)
    }

    fn note(&self) -> Option<String> {
        let name = self.image.name();
        let why = match self.aborted? {
            Aborted::Returned => "the program returned XDP_ABORTED".to_owned(),
            Aborted::TooLong => "the packet was too long".to_owned(),
            Aborted::Fault(Fault { slot, kind }) => {
                format!("slot {slot} ({}): {kind}", self.program.listing().line(slot as usize))
            }
        };
        Some(format!("{name}: the first ABORTED: {why}"))
    }
}

/// Enters every process as a CPU: entry n is the one with slot n. The entry of a slot without a process
/// counts as empty when a packet for it is handed over.
fn fill_cpumap(map: &Map) -> Result<(), MapError> {
    let mut value = vec![0; map.def().value_size as usize];
    if let Some(queue_size) = value.first_mut() {
        *queue_size = 1;
    }
    let slots = map.def().max_entries.min(SLOTS.into());
    (0..slots).try_for_each(|slot| map.update(&slot.to_le_bytes(), &value, UpdateMode::Any))
}

fn verdict(returned: u32, target: Target) -> Verdict {
    match XdpAction::from_number(returned) {
        Some(XdpAction::Pass) => Verdict::Pass,
        Some(XdpAction::Drop) => Verdict::Drop,
        Some(XdpAction::Aborted) => Verdict::Aborted,
        Some(XdpAction::Tx) => Verdict::Tx,
        Some(XdpAction::Redirect) => Verdict::Redirect(target),
        None => Verdict::Invalid,
    }
}

/// The time, random numbers and the log for helper functions.
#[derive(Debug)]
struct World<'a> {
    random: &'a mut u64,
    runtime: &'a Runtime,
    log: &'a mut Log,
    is_received: bool,
}

impl Env for World<'_> {
    fn ktime_ns(&mut self) -> u64 {
        self.runtime.now_ns()
    }

    fn random(&mut self) -> u32 {
        let random = &mut *self.random;
        *random ^= *random >> 12;
        *random ^= *random << 25;
        *random ^= *random >> 27;
        (random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// The time at which the device received the packet, by its clock; a packet to send has none.
    fn rx_hints(&mut self) -> RxHints {
        let timestamp_ns = self.is_received.then(|| self.runtime.now_ns());
        RxHints { timestamp_ns, ..RxHints::default() }
    }

    fn trace(&mut self, line: &str) {
        if self.log.is_open() {
            self.log.push(self.runtime.now_ns(), line);
        }
    }
}
