//! Register contents that all paths to an instruction have in common.

use super::ObjectionKind;
use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Imm64, Insn, Operand, Reg, Size, Width};
use crate::vm::holds;

/// Knowledge about the content of a register.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Value {
    /// No instruction has written it.
    Unset,
    /// Unknown, or different on different paths.
    Any,
    Number(u64),
    /// Pointer to the context, with an offset in bytes.
    Context(i64),
    /// Pointer to the stack, with an offset from the end of the frame in bytes.
    Stack(i64),
    /// Pointer into the packet.
    Packet,
    PacketEnd,
    /// A `Packet` or `PacketEnd` from before a helper moved the packet.
    Moved,
    Map,
    /// Result of a map lookup.
    MaybeNull,
}

/// The state before an instruction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct State {
    regs: [Value; 11],
    /// Some pointer was compared with another, which may have been a bounds check of the packet.
    compared: bool,
}

/// Length of a function's stack frame in bytes (linux/filter.h, MAX_BPF_STACK).
const STACK_LEN: i64 = 512;
/// Length of `struct xdp_md` in bytes.
const CONTEXT_LEN: i64 = 24;

impl State {
    /// Returns the state at the start of the program.
    pub(super) fn main() -> State {
        let mut regs = [Value::Unset; 11];
        (regs[1], regs[10]) = (Value::Context(0), Value::Stack(0));
        State { regs, compared: false }
    }

    /// Returns the state at the start of an inner function. Its callers are not followed.
    pub(super) fn function() -> State {
        let mut regs = [Value::Unset; 11];
        regs[1..=5].fill(Value::Any);
        regs[10] = Value::Stack(0);
        State { regs, compared: true }
    }

    /// Returns the knowledge that holds on both paths.
    pub(super) fn join(&self, other: &State) -> State {
        let mut regs = self.regs;
        for (value, other) in regs.iter_mut().zip(other.regs) {
            if *value != other {
                *value = Value::Any;
            }
        }
        State { regs, compared: self.compared || other.compared }
    }

    pub(super) fn is_unset(&self, reg: Reg) -> bool {
        self.get(reg) == Value::Unset
    }

    /// Returns whether a branch may continue with the next instruction, and at its target. For other
    /// instructions both are true.
    pub(super) fn goes(&self, insn: &Insn) -> [bool; 2] {
        let Insn::Branch { width, cond, dst, src, .. } = *insn else { return [true; 2] };
        match (self.get(dst), self.operand(src)) {
            (Value::Number(a), Value::Number(b)) => {
                let taken = holds(cond, width, a, b);
                [!taken, taken]
            }
            _ => [true; 2],
        }
    }

    /// Returns the state after an instruction, and what is wrong with the instruction.
    pub(super) fn after(&self, insn: &Insn) -> (State, Option<ObjectionKind>) {
        let mut next = *self;
        let wrong = next.step(self, insn).err();
        (next, wrong)
    }

    /// Changes this copy of `before` to the state after the instruction, also if the instruction is wrong.
    fn step(&mut self, before: &State, insn: &Insn) -> Result<(), ObjectionKind> {
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                let with = before.read_operand(src);
                let old = if op == AluOp::Mov { Ok(Value::Any) } else { before.read(dst) };
                self.set(dst, Value::Any);
                self.set(dst, computed(width, op, old?, with?));
            }
            Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => {
                self.set(dst, Value::Any);
                before.read(dst)?;
            }
            Insn::MovSx { dst, src, .. } => {
                self.set(dst, Value::Any);
                before.read(src)?;
            }
            Insn::LoadImm64 { dst, imm } => self.set(
                dst,
                match imm {
                    Imm64::Value(number) => Value::Number(number),
                    Imm64::Map(_) | Imm64::MapFd(_) => Value::Map,
                    _ => Value::Any,
                },
            ),
            Insn::Load { size, dst, base, off, .. } | Insn::LoadAcquire { size, dst, base, off } => {
                self.set(
                    dst,
                    match before.get(base) {
                        Value::Context(at) if at + i64::from(off) == 0 => Value::Packet,
                        Value::Context(at) if at + i64::from(off) == 4 => Value::PacketEnd,
                        _ => Value::Any,
                    },
                );
                before.access(base, off, size, false)?;
            }
            Insn::Store { size, base, off, src } => {
                before.read_operand(src)?;
                before.access(base, off, size, true)?;
            }
            Insn::StoreRelease { size, base, off, src } => {
                before.read(src)?;
                before.access(base, off, size, true)?;
            }
            Insn::Atomic { width, op, base, off, src } => {
                let is_exchange = op == AtomicOp::CmpXchg;
                self.set(if is_exchange { Reg::R0 } else { src }, Value::Any);
                before.read(src)?;
                before.access(base, off, if width == Width::W32 { Size::W } else { Size::Dw }, true)?;
                if is_exchange {
                    before.read(Reg::R0)?;
                }
            }
            Insn::Branch { dst, src, .. } => self.compare(before.read(dst)?, before.read_operand(src)?, src),
            Insn::CallHelper { id } => self.call(before, Helper::from_id(id))?,
            // The function may have compared or moved every pointer that it received.
            Insn::CallLocal { .. } | Insn::CallKfunc { .. } => {
                self.forget(|value| matches!(value, Value::Packet | Value::PacketEnd | Value::MaybeNull));
                self.compared = true;
                self.end_call(Value::Any);
            }
            Insn::Jump { .. } | Insn::JumpLong { .. } | Insn::Exit => {}
        }
        Ok(())
    }

    fn get(&self, reg: Reg) -> Value {
        self.regs[usize::from(reg.number())]
    }

    fn set(&mut self, reg: Reg, value: Value) {
        self.regs[usize::from(reg.number())] = value;
    }

    fn read(&self, reg: Reg) -> Result<Value, ObjectionKind> {
        match self.get(reg) {
            Value::Unset => Err(ObjectionKind::Unset(reg)),
            value => Ok(value),
        }
    }

    fn operand(&self, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(imm) => Value::Number(i64::from(imm) as u64),
        }
    }

    fn read_operand(&self, operand: Operand) -> Result<Value, ObjectionKind> {
        match operand {
            Operand::Reg(reg) => self.read(reg),
            Operand::Imm(_) => Ok(self.operand(operand)),
        }
    }

    fn access(&self, base: Reg, off: i16, size: Size, write: bool) -> Result<(), ObjectionKind> {
        let (off, len) = (i64::from(off), size.bytes());
        match self.read(base)? {
            Value::Context(at) => {
                let off = at + off;
                let is_field = !write && len == 4 && off % 4 == 0 && (0..CONTEXT_LEN).contains(&off);
                if is_field { Ok(()) } else { Err(ObjectionKind::Context { off, size: len }) }
            }
            Value::Stack(at) => {
                let off = at + off;
                let within = (-STACK_LEN..=-(len as i64)).contains(&off);
                if within { Ok(()) } else { Err(ObjectionKind::Stack { off }) }
            }
            Value::Packet if !self.compared => Err(ObjectionKind::Unchecked),
            Value::PacketEnd => Err(ObjectionKind::BehindEnd),
            Value::Moved => Err(ObjectionKind::Moved),
            Value::MaybeNull => Err(ObjectionKind::MaybeNull),
            Value::Number(number) => Err(ObjectionKind::Number(number)),
            Value::Unset | Value::Any | Value::Packet | Value::Map => Ok(()),
        }
    }

    /// A comparison may be a bounds check of the packet or a NULL check. It counts for all pointers of that
    /// kind; which pointer was compared is not tracked.
    fn compare(&mut self, left: Value, right: Value, with: Operand) {
        let may_bound = |value| matches!(value, Value::Packet | Value::PacketEnd | Value::Any);
        if matches!(with, Operand::Reg(_)) && may_bound(left) && may_bound(right) {
            self.compared = true;
        }
        if [left, right].contains(&Value::MaybeNull) {
            self.forget(|value| value == Value::MaybeNull);
        }
    }

    fn call(&mut self, before: &State, helper: Option<Helper>) -> Result<(), ObjectionKind> {
        // Image::new rejects unknown helpers.
        let Some(helper) = helper else {
            self.end_call(Value::Any);
            return Ok(());
        };
        if matches!(helper, Helper::XdpAdjustHead | Helper::XdpAdjustMeta | Helper::XdpAdjustTail) {
            for value in &mut self.regs {
                if matches!(value, Value::Packet | Value::PacketEnd) {
                    *value = Value::Moved;
                }
            }
            self.compared = false;
        }
        let looks_up =
            matches!(helper, Helper::MapLookupElem | Helper::MapLookupPercpuElem | Helper::RingbufReserve);
        self.end_call(if looks_up { Value::MaybeNull } else { Value::Any });
        let right = match before.get(Reg::R1) {
            Value::Any => true,
            Value::Map => !takes_context(helper),
            Value::Context(at) => !takes_map(helper) && at == 0,
            _ => !takes_map(helper) && !takes_context(helper),
        };
        if right {
            return Ok(());
        }
        before.read(Reg::R1)?;
        Err(ObjectionKind::Argument(helper))
    }

    fn end_call(&mut self, result: Value) {
        self.regs[0] = result;
        self.regs[1..=5].fill(Value::Unset);
    }

    fn forget(&mut self, what: impl Fn(Value) -> bool) {
        for value in self.regs.iter_mut().filter(|value| what(**value)) {
            *value = Value::Any;
        }
    }
}

/// Returns whether the first argument of the helper is a map.
pub(super) fn takes_map(helper: Helper) -> bool {
    matches!(
        helper,
        Helper::MapLookupElem
            | Helper::MapUpdateElem
            | Helper::MapDeleteElem
            | Helper::MapLookupPercpuElem
            | Helper::RedirectMap
            | Helper::RingbufOutput
            | Helper::RingbufReserve
            | Helper::RingbufQuery
    )
}

/// Returns whether the first argument of the helper is the context.
fn takes_context(helper: Helper) -> bool {
    matches!(
        helper,
        Helper::XdpAdjustHead
            | Helper::XdpAdjustMeta
            | Helper::XdpAdjustTail
            | Helper::XdpGetBuffLen
            | Helper::XdpLoadBytes
            | Helper::XdpStoreBytes
            | Helper::PerfEventOutput
            | Helper::FibLookup
    )
}

/// `old OP with`.
fn computed(width: Width, op: AluOp, old: Value, with: Value) -> Value {
    let moved = |by: u64, forwards: bool, at: i64| {
        if forwards { at.wrapping_add(by as i64) } else { at.wrapping_sub(by as i64) }
    };
    match (width, op, old, with) {
        (Width::W64, AluOp::Mov, _, value) => value,
        (Width::W32, AluOp::Mov, _, Value::Number(number)) => Value::Number(number & 0xffff_ffff),
        (Width::W64, AluOp::Add | AluOp::Sub, old, with) => match (old, with, op == AluOp::Add) {
            (Value::Number(a), Value::Number(b), true) => Value::Number(a.wrapping_add(b)),
            (Value::Number(a), Value::Number(b), false) => Value::Number(a.wrapping_sub(b)),
            (Value::Context(at), Value::Number(by), forwards) => Value::Context(moved(by, forwards, at)),
            (Value::Stack(at), Value::Number(by), forwards) => Value::Stack(moved(by, forwards, at)),
            (Value::Packet, Value::Number(_) | Value::Any, _)
            | (Value::Number(_) | Value::Any, Value::Packet, true) => Value::Packet,
            (Value::Moved, Value::Number(_), _) => Value::Moved,
            _ => Value::Any,
        },
        _ => Value::Any,
    }
}
