//! Static checks: finds instructions that are wrong on every path, without running the program.
//!
//! The user-space machine checks every access at run time. It accepts programs that the kernel's verifier
//! rejects, and ends them with ABORTED when they reach a wrong instruction, for every packet. [`vet`] finds
//! such programs in advance. It follows the code once with the register contents that all paths to an
//! instruction have in common. The kernel rejects everything that is reported here. The reverse does not
//! hold: errors that depend on the path or on the range of a number are left to the machine.

mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::helper::Helper;
use crate::insn::{Imm64, Insn, Reg, decode_all};
use crate::program::Program;
use value::State;

/// An instruction that is wrong on every path, and the reason.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Objection {
    /// Slot of the instruction.
    pub slot: usize,
    /// Text of the instruction, as [`Listing`](crate::Listing) shows it.
    pub insn: String,
    /// Reason.
    pub kind: ObjectionKind,
}

/// Reason of an [`Objection`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectionKind {
    /// No path leads to the instruction.
    Unreachable,
    /// No path leads from the instruction to the end of the function.
    Endless,
    /// The register is read before it is written.
    Unset(Reg),
    /// No field of `struct xdp_md` has this offset and size, or the program writes to it.
    Context {
        /// Byte offset.
        off: i64,
        /// Size of the access in bytes.
        size: usize,
    },
    /// The packet is accessed before any comparison with its end.
    Unchecked,
    /// A packet pointer is used that was loaded before a helper moved the start or end of the packet.
    Moved,
    /// The result of a map lookup is accessed before it is compared with NULL.
    MaybeNull,
    /// A number is used as an address.
    Number(u64),
    /// The program accesses memory at `data_end`, which is after the packet.
    BehindEnd,
    /// The access is outside the 512 bytes of the stack frame.
    Stack {
        /// Offset from r10 in bytes.
        off: i64,
    },
    /// The first argument of this helper has the wrong type.
    Argument(Helper),
}

impl Objection {
    /// Returns whether the machine also ends the program there. It executes the instruction in all other
    /// cases.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self.kind {
            ObjectionKind::Endless
            | ObjectionKind::Context { .. }
            | ObjectionKind::Number(_)
            | ObjectionKind::Stack { .. }
            | ObjectionKind::Argument(_) => true,
            ObjectionKind::Unreachable
            | ObjectionKind::Unset(_)
            | ObjectionKind::Unchecked
            | ObjectionKind::Moved
            | ObjectionKind::MaybeNull
            | ObjectionKind::BehindEnd => false,
        }
    }
}

/// Returns the instructions that are wrong on every path, fatal ones first. The result
/// is empty for a program that does not decode or has a jump without a valid target;
/// [`Image::new`](crate::vm::Image::new) rejects it.
#[must_use]
pub fn vet(program: &Program) -> Vec<Objection> {
    let Some(code) = Code::new(program) else { return Vec::new() };
    let mut found = code.flow();
    found.extend(code.values());
    let objection = |(at, kind): Found| {
        let slot = code.insns[at].0;
        Objection { slot, insn: program.listing().line(slot), kind }
    };
    let mut objections: Vec<Objection> = found.into_iter().map(objection).collect();
    objections.sort_by_key(|objection| (!objection.is_fatal(), objection.slot));
    objections
}

/// Index of an instruction, and what is wrong with it.
type Found = (usize, ObjectionKind);

struct Code {
    insns: Vec<(usize, Insn)>,
    at_slot: BTreeMap<usize, usize>,
    /// Index of the first instruction of each function.
    functions: BTreeSet<usize>,
}

impl Code {
    fn new(program: &Program) -> Option<Code> {
        let insns = decode_all(&program.slots).ok()?;
        let at_slot = insns.iter().enumerate().map(|(at, (slot, _))| (*slot, at)).collect();
        let mut code = Code { insns, at_slot, functions: BTreeSet::from([0]) };
        for at in 0..code.insns.len() {
            let target = match code.insns[at].1 {
                Insn::CallLocal { off } => code.target(at, off.into())?,
                Insn::LoadImm64 { imm: Imm64::Func(off), .. } => code.target(at, off.into())?,
                _ => continue,
            };
            code.functions.insert(target);
        }
        let sound = !code.insns.is_empty() && (0..code.insns.len()).all(|at| code.next(at).is_some());
        sound.then_some(code)
    }

    fn target(&self, at: usize, off: i64) -> Option<usize> {
        let target = usize::try_from(self.insns[at].0 as i64 + 1 + off).ok()?;
        self.at_slot.get(&target).copied()
    }

    /// Returns the possible successors of an instruction in its function: the next instruction, and the
    /// target of a jump. Returns `None` if one is outside the program.
    fn next(&self, at: usize) -> Option<(Option<usize>, Option<usize>)> {
        let behind = || (at + 1 < self.insns.len()).then_some(at + 1);
        Some(match self.insns[at].1 {
            Insn::Exit => (None, None),
            Insn::Jump { off } => (None, Some(self.target(at, off.into())?)),
            Insn::JumpLong { off } => (None, Some(self.target(at, off.into())?)),
            Insn::Branch { off, .. } => (Some(behind()?), Some(self.target(at, off.into())?)),
            _ => (Some(behind()?), None),
        })
    }

    fn following(&self, at: usize) -> impl Iterator<Item = usize> {
        let (behind, target) = self.next(at).unwrap_or_default();
        behind.into_iter().chain(target)
    }

    /// Returns the first unreachable instruction, and the first from which no path leads to an end.
    fn flow(&self) -> Vec<Found> {
        let mut reached = vec![false; self.insns.len()];
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.insns.len()];
        let mut todo = vec![0];
        while let Some(at) = todo.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            if let Insn::CallLocal { off } | Insn::LoadImm64 { imm: Imm64::Func(off), .. } = self.insns[at].1
            {
                todo.extend(self.target(at, off.into()));
            }
            for next in self.following(at) {
                before[next].push(at);
                todo.push(next);
            }
        }
        let mut ends = vec![false; self.insns.len()];
        let is_exit = |at: &usize| matches!(self.insns[*at].1, Insn::Exit);
        let mut todo: Vec<usize> = (0..self.insns.len()).filter(is_exit).collect();
        while let Some(at) = todo.pop() {
            if !std::mem::replace(&mut ends[at], true) {
                todo.extend(&before[at]);
            }
        }
        let first = |what: &dyn Fn(usize) -> bool| (0..self.insns.len()).find(|at| what(*at));
        let dead = first(&|at| !reached[at]).map(|at| (at, ObjectionKind::Unreachable));
        let endless = first(&|at| reached[at] && !ends[at]).map(|at| (at, ObjectionKind::Endless));
        dead.into_iter().chain(endless).collect()
    }

    /// Returns the instructions that are wrong with the register contents that all paths have in common.
    fn values(&self) -> Vec<Found> {
        let mut states: Vec<Option<State>> = vec![None; self.insns.len()];
        let mut todo = BTreeSet::new();
        for function in &self.functions {
            states[*function] = Some(if *function == 0 { State::main() } else { State::function() });
            todo.insert(*function);
        }
        // A state can only be judged when it is final, because each further path removes knowledge from it.
        while let Some(at) = todo.pop_first() {
            let Some(before) = states[at] else { continue };
            let insn = &self.insns[at].1;
            let (after, _) = before.after(insn);
            let (behind, target) = self.next(at).unwrap_or_default();
            let [falls, jumps] = before.goes(insn);
            for next in behind.filter(|_| falls).into_iter().chain(target.filter(|_| jumps)) {
                let joined = states[next].map_or(after, |known| known.join(&after));
                if states[next] != Some(joined) {
                    states[next] = Some(joined);
                    todo.insert(next);
                }
            }
        }
        let mut found = Vec::new();
        let main_end = self.functions.range(1..).next().copied().unwrap_or(self.insns.len());
        for (at, state) in states.iter().enumerate() {
            let Some(state) = state else { continue };
            found.extend(state.after(&self.insns[at].1).1.map(|kind| (at, kind)));
            if matches!(self.insns[at].1, Insn::Exit) && at < main_end && state.is_unset(Reg::R0) {
                found.push((at, ObjectionKind::Unset(Reg::R0)));
            }
        }
        found
    }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} ({}): ", self.slot, self.insn)?;
        match self.kind {
            ObjectionKind::Unreachable => f.write_str("unreachable: no path leads to this instruction"),
            ObjectionKind::Endless => f.write_str("endless loop: no path leads from here to an exit"),
            ObjectionKind::Unset(reg) => write!(f, "{reg} is read before it is written"),
            ObjectionKind::Context { off, size } => write!(
                f,
                "invalid access to {size} bytes of the context at {off}: it has 6 read-only fields of 4 bytes"
            ),
            ObjectionKind::Unchecked => {
                f.write_str("the packet is accessed without a prior comparison with data_end")
            }
            ObjectionKind::Moved => {
                f.write_str("the packet pointer is stale: a helper has moved the start or end of the packet")
            }
            ObjectionKind::MaybeNull => {
                f.write_str("the result of a map lookup is accessed before it is compared with NULL")
            }
            ObjectionKind::Number(number) => write!(f, "the number {number:#x} is no address"),
            ObjectionKind::BehindEnd => f.write_str("access at data_end, which is after the packet"),
            ObjectionKind::Stack { off } => {
                write!(f, "access outside the stack frame of 512 bytes below r10, at r10{off:+}")
            }
            ObjectionKind::Argument(helper) => {
                let wanted = if value::takes_map(helper) { "a map" } else { "the context" };
                write!(f, "the first argument of bpf_{} is not {wanted}", helper.name())
            }
        }
    }
}

impl std::error::Error for Objection {}

#[cfg(test)]
mod tests;
