//! Joins programs: each sees the packet until one does not pass it, as the stages of a hook do.
//!
//! The programs become functions of one program, which calls them in order. The kernel's verifier follows the
//! calls, so this works on every kernel with functions (4.16), with one attached program and no dispatcher.

use std::fmt;

use crate::btf::{FunctionName, describe};
use crate::insn::{AluOp, Cond, DecodeError, Imm64, Insn, Operand, Reg, Slot, Width, decode_all, encode};
use crate::map::Initial;
use crate::program::{Program, ProgramKind};
use crate::xdp::XdpAction;

/// Most programs that can be joined: the verifier follows all their paths.
pub const JOINED_MAX: usize = 16;

/// A joined program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Joined {
    /// The program.
    pub program: Program,
    /// Index of the first map of each part in [`Program::maps`].
    pub first_map: Vec<usize>,
}

/// Slots of the dispatcher for each part: `r1 = r6; call; if r0 != XDP_PASS goto exit`.
const PER_PART: usize = 3;

/// Joins programs in order. If an earlier part has a map of the same name, a map gets a number: `counters.2`.
/// Type information is lost, except for assembled programs, which have only that of their functions.
///
/// # Errors
/// [`JoinError`] if there are none or too many, or one is not for an interface.
pub fn join(name: &str, parts: &[Program]) -> Result<Joined, JoinError> {
    if parts.is_empty() || parts.len() > JOINED_MAX {
        return Err(JoinError::Number);
    }
    if let Some(part) = parts.iter().find(|part| part.kind != ProgramKind::Xdp) {
        return Err(JoinError::Kind(part.name.clone()));
    }
    if let Some(part) = parts.iter().find(|part| !part.tails.is_empty()) {
        return Err(JoinError::TailCalls(part.name.clone()));
    }
    let exit = 1 + parts.len() * PER_PART;
    let mut slots = Vec::new();
    let mov = |dst, src: Reg| Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: src.into() };
    encode(&mov(Reg::R6, Reg::R1), &mut slots);
    let mut start = exit + 1;
    let mut functions = vec![FunctionName { name, slot: 0, args: 1 }];
    for part in parts {
        let behind = slots.len() + PER_PART;
        let (width, cond, dst) = (Width::W64, Cond::Ne, Reg::R0);
        let pass = Operand::Imm(XdpAction::Pass.number() as i32);
        encode(&mov(Reg::R1, Reg::R6), &mut slots);
        encode(&Insn::CallLocal { off: (start + 1 - behind) as i32 }, &mut slots);
        encode(&Insn::Branch { width, cond, dst, src: pass, off: (exit - behind) as i16 }, &mut slots);
        functions.push(FunctionName { name: &part.name, slot: start as u32, args: 1 });
        start += part.slots.len();
    }
    encode(&Insn::Exit, &mut slots);
    let (mut maps, mut first_map, mut kfuncs) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        let first = maps.len();
        first_map.push(first);
        for def in &part.maps {
            let mut def = def.clone();
            def.name = free_name(&maps, &def.name);
            for (_, initial) in &mut def.entries {
                if let Initial::Map(index) = initial {
                    *index += first as u32;
                }
            }
            maps.push(def);
        }
        append(&mut slots, part, first as u32, kfuncs.len() as u32)?;
        kfuncs.extend(part.kfuncs.iter().cloned());
    }
    let has_one_function = |part: &Program| part.btf.as_ref().is_some_and(|btf| btf.func_info.len() == 1);
    let btf = parts.iter().all(has_one_function).then(|| describe(&functions));
    let program = Program {
        name: name.to_owned(),
        kind: ProgramKind::Xdp,
        slots,
        maps,
        // The strictest licence decides which helpers there are.
        license: parts.iter().find(|part| !part.license.contains("GPL")).unwrap_or(&parts[0]).license.clone(),
        frags: parts.iter().all(|part| part.frags),
        btf,
        kfuncs,
        tails: Vec::new(),
    };
    Ok(Joined { program, first_map })
}

/// Appends the code with its references to maps and kernel functions moved.
fn append(slots: &mut Vec<Slot>, part: &Program, first: u32, first_kfunc: u32) -> Result<(), JoinError> {
    let wrong = |error| JoinError::Code(part.name.clone(), error);
    for (_, insn) in decode_all(&part.slots).map_err(wrong)? {
        let insn = match insn {
            Insn::LoadImm64 { dst, imm: Imm64::Map(map) } => {
                Insn::LoadImm64 { dst, imm: Imm64::Map(map + first) }
            }
            Insn::LoadImm64 { dst, imm: Imm64::MapValue { map, off } } => {
                Insn::LoadImm64 { dst, imm: Imm64::MapValue { map: map + first, off } }
            }
            Insn::CallKfunc { id, btf: 0 } if !part.kfuncs.is_empty() => {
                Insn::CallKfunc { id: id + first_kfunc as i32, btf: 0 }
            }
            other => other,
        };
        encode(&insn, slots);
    }
    Ok(())
}

fn free_name(maps: &[crate::map::MapDef], name: &str) -> String {
    let is_free = |name: &str| maps.iter().all(|map| map.name != name);
    if is_free(name) {
        return name.to_owned();
    }
    // The kernel keeps 15 characters.
    let short: String = name.chars().take(12).collect();
    (2..).map(|number| format!("{short}.{number}")).find(|name| is_free(name)).unwrap_or_default()
}

/// Why programs were not joined.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JoinError {
    /// There are none, or more than [`JOINED_MAX`].
    Number,
    /// The named program is for an entry of a map, or no XDP program.
    Kind(String),
    /// The named program has initial programs in its program arrays.
    TailCalls(String),
    /// The named program has slots that are no instructions.
    Code(String, DecodeError),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Number => write!(f, "1 to {JOINED_MAX} programs can be joined"),
            JoinError::Kind(name) => write!(f, "{name} is not for an interface"),
            JoinError::TailCalls(name) => {
                write!(f, "{name} has programs in its program arrays; such programs cannot be joined")
            }
            JoinError::Code(name, error) => write!(f, "program {name}: {error}"),
        }
    }
}

impl std::error::Error for JoinError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::recipe::{ACCESS, Access, COUNTERS};
    use crate::vm::{Env, Image, Machine, XdpBuff};
    use crate::{Action, Recipe, Select, Stage};

    struct Host;
    impl Env for Host {
        fn ktime_ns(&mut self) -> u64 {
            0
        }
        fn random(&mut self) -> u32 {
            0
        }
    }

    fn recipe(stages: Vec<Stage>, action: XdpAction) -> Recipe {
        let select = if stages.is_empty() { Select::All } else { Select::Ip };
        Recipe { select, stages, action: Action::Verdict(action), counters: true, frags: true }
    }

    fn run(joined: &Joined, packet: &mut [u8]) -> (XdpAction, Vec<u64>) {
        let maps: Vec<_> = joined.program.maps.iter().map(|def| Map::new(def, 1).unwrap()).collect();
        let image = Image::new(&joined.program, maps.clone()).unwrap();
        let len = packet.len();
        let mut buff = XdpBuff::new(packet, 0..len).unwrap();
        let outcome = Machine::new(0).run(&image, &mut buff, &mut Host);
        assert_eq!(outcome.fault, None, "{}", joined.program.listing());
        let counted = maps.iter().filter(|map| map.def().name.starts_with(COUNTERS)).map(|map| {
            let key = outcome.action().number().to_le_bytes();
            u64::from_le_bytes(*map.lookup(&key).unwrap().first_chunk().unwrap())
        });
        (outcome.action(), counted.collect())
    }

    #[test]
    fn parts_run_in_order_until_one_does_not_pass() {
        let pass = recipe(Vec::new(), XdpAction::Pass).program("first", ProgramKind::Xdp).unwrap();
        let drop = recipe(Vec::new(), XdpAction::Drop).program("second", ProgramKind::Xdp).unwrap();
        let joined = join("both", &[pass.clone(), drop.clone(), pass.clone()]).unwrap();
        assert_eq!(run(&joined, &mut [0; 60]), (XdpAction::Drop, vec![0, 1, 0]));
        let joined = join("passes", &[pass.clone(), pass]).unwrap();
        assert_eq!(run(&joined, &mut [0; 60]), (XdpAction::Pass, vec![1, 1]));
        assert!(joined.program.btf.is_some() && joined.program.frags);
    }

    #[test]
    fn maps_of_equal_names_get_numbers_and_references_follow() {
        let access = recipe(vec![Stage::Access(Access { default_allow: true, entries: 4 })], XdpAction::Pass);
        let access = access.program("access", ProgramKind::Xdp).unwrap();
        let joined = join("twice", &[access.clone(), access]).unwrap();
        let names: Vec<_> = joined.program.maps.iter().map(|map| &map.name[..]).collect();
        assert_eq!(names, [ACCESS, COUNTERS, "access.2", "counters.2"]);
        assert_eq!(joined.first_map, [0, 2]);
        assert_eq!(run(&joined, &mut [0; 60]).0, XdpAction::Pass);
    }

    #[test]
    fn what_cannot_be_joined_is_refused() {
        let inner = Recipe::verdict(XdpAction::Pass).program("inner", ProgramKind::XdpCpumap).unwrap();
        assert_eq!(join("x", &[]), Err(JoinError::Number));
        assert_eq!(join("x", &[inner]), Err(JoinError::Kind("inner".to_owned())));
        let pass = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
        assert_eq!(join("x", &vec![pass; JOINED_MAX + 1]), Err(JoinError::Number));
    }
}
