//! What is surely wrong with a program, found without running it.
//!
//! The user-space machine checks every access when it happens, so it takes programs that the kernel's verifier would
//! refuse, and ends them with ABORTED when they come to the wrong place, packet after packet. Here such a program is
//! found before: its code is followed once, with what each register holds on every way to an instruction. Everything that
//! is objected to is refused by the kernel. The reverse is not so: what depends on which way was taken, or on the range of
//! a number, is left to the machine.

mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::helper::Helper;
use crate::insn::{Imm64, Insn, Reg, decode_all};
use crate::program::Program;
use value::State;

/// What is wrong with a program, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Objection {
    /// Slot of the instruction.
    pub slot: usize,
    /// The instruction, as [`Listing`](crate::Listing) shows it.
    pub insn: String,
    /// What is wrong with it.
    pub kind: ObjectionKind,
}

/// See [`Objection`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectionKind {
    /// Nothing leads there.
    Unreachable,
    /// Nothing leads from there to the end of the function.
    Endless,
    /// The register is read, and nothing was put into it.
    Unset(Reg),
    /// No field of `struct xdp_md` begins there and has this size, or it would be written.
    Context {
        /// Byte offset.
        off: i64,
        /// Bytes.
        size: usize,
    },
    /// The packet is accessed before anything was compared with its end.
    Unchecked,
    /// A pointer into the packet from before the helper that moved its start or end.
    Moved,
    /// What a look-up returned is accessed before it was compared with NULL.
    MaybeNull,
    /// A number is accessed.
    Number(u64),
    /// `data_end` is behind the packet, and accessed.
    BehindEnd,
    /// Outside the 512 bytes of the stack frame.
    Stack {
        /// Offset from r10.
        off: i64,
    },
    /// The first argument of this helper must be something else.
    Argument(Helper),
}

impl Objection {
    /// Whether the machine ends the program there, too. What else the kernel refuses, it does.
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

/// What is surely wrong with the program, those that end it first. A program that does not decode, or whose jumps lead
/// nowhere, is for [`Image::new`](crate::vm::Image::new) to refuse.
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

/// An instruction, by its place in the order of the code, and what is wrong with it.
type Found = (usize, ObjectionKind);

struct Code {
    insns: Vec<(usize, Insn)>,
    at_slot: BTreeMap<usize, usize>,
    /// First instructions of the functions.
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
                Insn::LoadImm64 { imm: Imm64::Func(_), .. } => return None,
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

    /// What may follow an instruction in its function: the next one, and where it jumps to. `None` if it leads out of the
    /// program.
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

    /// The first instruction that nothing reaches, and the first that leads to no end.
    fn flow(&self) -> Vec<Found> {
        let mut reached = vec![false; self.insns.len()];
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.insns.len()];
        let mut todo = vec![0];
        while let Some(at) = todo.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            if let Insn::CallLocal { off } = self.insns[at].1 {
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

    /// Instructions that do what they may not, whichever way leads to them.
    fn values(&self) -> Vec<Found> {
        let mut states: Vec<Option<State>> = vec![None; self.insns.len()];
        let mut todo = BTreeSet::new();
        for function in &self.functions {
            states[*function] = Some(if *function == 0 { State::main() } else { State::function() });
            todo.insert(*function);
        }
        // Whatever is wrong is wrong of the state that all ways have in common, which is known in the end only.
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
            ObjectionKind::Unreachable => f.write_str("nothing leads there"),
            ObjectionKind::Endless => f.write_str("a loop without a way out"),
            ObjectionKind::Unset(reg) => write!(f, "{reg} is read, and nothing was put into it"),
            ObjectionKind::Context { off, size } => write!(
                f,
                "no access to {size} bytes of the context at {off}: it has 6 fields of 4 bytes, to be read only"
            ),
            ObjectionKind::Unchecked => {
                f.write_str("the packet is accessed before anything was compared with data_end")
            }
            ObjectionKind::Moved => {
                f.write_str("a pointer into the packet from before the helper that moved its start or end")
            }
            ObjectionKind::MaybeNull => {
                f.write_str("what a look-up returned is accessed before it was compared with NULL")
            }
            ObjectionKind::Number(number) => write!(f, "the number {number:#x} is no address"),
            ObjectionKind::BehindEnd => f.write_str("nothing can be accessed at data_end"),
            ObjectionKind::Stack { off } => {
                write!(f, "outside the stack, which is the 512 bytes below r10: at r10{off:+}")
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
