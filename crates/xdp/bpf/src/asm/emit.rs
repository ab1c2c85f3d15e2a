//! Methods of the assembler that emit one common instruction each.

use super::{Asm, Label, Target};
use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, Width};
use crate::map::MapRef;
use crate::xdp::{XdpAction, XdpMd};

impl Asm {
    /// `dst = dst OP src`, 64 bits wide.
    pub fn alu(&mut self, op: AluOp, dst: Reg, src: impl Into<Operand>) -> &mut Asm {
        self.insn(Insn::Alu { width: Width::W64, op, dst, src: src.into() })
    }

    /// `dst = dst OP src` on the lower 32 bits. The upper 32 bits of `dst` become 0.
    pub fn alu32(&mut self, op: AluOp, dst: Reg, src: impl Into<Operand>) -> &mut Asm {
        self.insn(Insn::Alu { width: Width::W32, op, dst, src: src.into() })
    }

    /// `dst = src`
    pub fn mov(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Asm {
        self.alu(AluOp::Mov, dst, src)
    }

    /// `dst += src`
    pub fn add(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Asm {
        self.alu(AluOp::Add, dst, src)
    }

    /// `dst &= src`
    pub fn and(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Asm {
        self.alu(AluOp::And, dst, src)
    }

    /// `dst >>= src`, unsigned.
    pub fn rsh(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Asm {
        self.alu(AluOp::Rsh, dst, src)
    }

    /// `dst = value`, 64 bits, two slots.
    pub fn load_imm64(&mut self, dst: Reg, value: u64) -> &mut Asm {
        self.insn(Insn::LoadImm64 { dst, imm: Imm64::Value(value) })
    }

    /// `dst = &map`
    pub fn load_map(&mut self, dst: Reg, map: MapRef) -> &mut Asm {
        self.insn(Insn::LoadImm64 { dst, imm: Imm64::Map(map.0) })
    }

    /// `dst = &map[0] + off`, for an array map with one entry.
    pub fn load_map_value(&mut self, dst: Reg, map: MapRef, off: u32) -> &mut Asm {
        self.insn(Insn::LoadImm64 { dst, imm: Imm64::MapValue { map: map.0, off } })
    }

    /// `dst = *(base + off)`, zero-extended.
    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, off: i16) -> &mut Asm {
        self.insn(Insn::Load { size, signed: false, dst, base, off })
    }

    /// `dst = ctx->field`. `ctx` holds the argument of the program.
    pub fn load_ctx(&mut self, dst: Reg, ctx: Reg, field: XdpMd) -> &mut Asm {
        self.load(Size::W, dst, ctx, field.offset())
    }

    /// `*(base + off) = src`
    pub fn store(&mut self, size: Size, base: Reg, off: i16, src: impl Into<Operand>) -> &mut Asm {
        self.insn(Insn::Store { size, base, off, src: src.into() })
    }

    /// Atomic operation on `*(base + off)`, which must be aligned to `width`.
    pub fn atomic(&mut self, width: Width, op: AtomicOp, base: Reg, off: i16, src: Reg) -> &mut Asm {
        self.insn(Insn::Atomic { width, op, base, off, src })
    }

    /// Converts the lowest `size` bytes of `dst` between host and network byte order. The upper bytes become
    /// 0.
    pub fn to_be(&mut self, size: Size, dst: Reg) -> &mut Asm {
        self.insn(Insn::Swap { to: Swap::ToBe, size, dst })
    }

    /// `goto label`
    pub fn jump(&mut self, label: Label) -> &mut Asm {
        self.with_target(Insn::Jump { off: 0 }, Target::Near(label))
    }

    /// `if dst COND src goto label`, comparing 64 bits.
    pub fn branch(&mut self, cond: Cond, dst: Reg, src: impl Into<Operand>, label: Label) -> &mut Asm {
        let insn = Insn::Branch { width: Width::W64, cond, dst, src: src.into(), off: 0 };
        self.with_target(insn, Target::Near(label))
    }

    /// `if dst COND src goto label`, comparing the lower 32 bits.
    pub fn branch32(&mut self, cond: Cond, dst: Reg, src: impl Into<Operand>, label: Label) -> &mut Asm {
        let insn = Insn::Branch { width: Width::W32, cond, dst, src: src.into(), off: 0 };
        self.with_target(insn, Target::Near(label))
    }

    /// Calls a helper. The arguments are in R1..R5, which the call clobbers; the result is in R0.
    pub fn call(&mut self, helper: Helper) -> &mut Asm {
        self.insn(Insn::CallHelper { id: helper.id() })
    }

    /// Returns R0 to the caller, or ends the program with R0 as the verdict.
    pub fn exit(&mut self) -> &mut Asm {
        self.insn(Insn::Exit)
    }

    /// Ends the program with the verdict `action`.
    pub fn ret(&mut self, action: XdpAction) -> &mut Asm {
        self.mov(Reg::R0, action.number() as i32).exit()
    }

    /// `dst = base + len; if dst > end goto short`. After this check the kernel's verifier allows the program
    /// to read `len` bytes from the packet pointer `base`.
    pub fn need(&mut self, dst: Reg, base: Reg, len: i32, end: Reg, short: Label) -> &mut Asm {
        self.mov(dst, base).add(dst, len).branch(Cond::Gt, dst, end, short)
    }
}
