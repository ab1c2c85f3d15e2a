//! Code that all blocks share: prologue, map lookups and exits.

use super::frame;
use super::{Action, Recipe, Select, Stage};
use crate::asm::{Asm, Label};
use crate::helper::Helper;
use crate::insn::{Cond, Reg, Size};
use crate::map::MapRef;
use crate::xdp::{XdpAction, XdpMd};

/// Offsets in an Ethernet frame without VLAN tags.
pub(super) mod eth {
    pub(crate) const LEN: i32 = 14;
    pub(crate) const TYPE: i16 = 12;
    pub(crate) const IPV4: u16 = 0x0800;
    pub(crate) const IPV6: u16 = 0x86dd;
}

/// Returns a 16-bit number as a load from the packet gives it: in network order, read by a little-endian
/// program.
pub(super) const fn net16(value: u16) -> i32 {
    value.swap_bytes() as i32
}

/// A program under construction.
pub(super) struct Emit {
    pub(super) asm: Asm,
    /// Exits that a block jumps to. Unused exits are not emitted, because the kernel rejects unreachable
    /// code.
    pass: Option<Label>,
    drop: Option<Label>,
    done: Label,
    /// Whether a stage needs the destination address.
    pub(super) wants_destination: bool,
    /// Whether packets beyond the MTU of their target pass.
    pub(super) checks_mtu: bool,
}

impl Emit {
    pub(super) fn new(name: &str) -> Emit {
        let mut asm = Asm::new(name);
        let done = asm.label();
        Emit { asm, pass: None, drop: None, done, wants_destination: false, checks_mtu: false }
    }

    /// Emits code that saves the context, unless the program only returns a verdict.
    pub(super) fn prologue(&mut self, recipe: &Recipe) {
        self.wants_destination = recipe.stages.contains(&Stage::Addressed);
        self.checks_mtu = recipe.stages.contains(&Stage::Mtu);
        let bare = matches!(recipe.action, Action::Verdict(_))
            && recipe.select == Select::All
            && recipe.stages.is_empty()
            && !recipe.counters;
        if !bare {
            self.asm.mov(Reg::R6, Reg::R1);
        }
    }

    /// Returns the label of the exit that passes the packet to the network stack.
    pub(super) fn pass(&mut self) -> Label {
        *self.pass.get_or_insert_with(|| self.asm.label())
    }

    /// Returns the label of the exit that drops the packet.
    pub(super) fn drop(&mut self) -> Label {
        *self.drop.get_or_insert_with(|| self.asm.label())
    }

    /// Emits code that sets R7 to the first byte of the packet and R8 to the end.
    pub(super) fn load_packet(&mut self) {
        self.asm.load_ctx(Reg::R7, Reg::R6, XdpMd::Data).load_ctx(Reg::R8, Reg::R6, XdpMd::DataEnd);
    }

    /// Emits code that looks up the key at stack offset `key` and sets R0 to the address of the value, or 0.
    pub(super) fn lookup(&mut self, map: MapRef, key: i16) {
        self.asm.load_map(Reg::R1, map).mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(key));
        self.asm.call(Helper::MapLookupElem);
    }

    /// As `lookup`, in an array with a constant index.
    pub(super) fn lookup_index(&mut self, map: MapRef, index: i32) {
        self.asm.store(Size::W, Reg::R10, frame::KEY, index);
        self.lookup(map, frame::KEY);
    }

    /// `*(u64 *)(base + off) += by`. Clobbers R1.
    pub(super) fn add_to(&mut self, base: Reg, off: i16, by: impl Into<crate::insn::Operand>) {
        self.asm.load(Size::Dw, Reg::R1, base, off).add(Reg::R1, by).store(Size::Dw, base, off, Reg::R1);
    }

    /// Emits the ends of the exits, after the action, which left its verdict in R0.
    pub(super) fn exits(&mut self) {
        if self.pass.is_some() || self.drop.is_some() {
            self.asm.jump(self.done);
        }
        if let Some(drop) = self.drop {
            self.asm.bind(drop).mov(Reg::R0, XdpAction::Drop.number() as i32);
            if self.pass.is_some() {
                self.asm.jump(self.done);
            }
        }
        if let Some(pass) = self.pass {
            self.asm.bind(pass).mov(Reg::R0, XdpAction::Pass.number() as i32);
        }
        self.asm.bind(self.done);
    }

    /// `if R0 == 0 goto label`, the check after a lookup.
    pub(super) fn if_null(&mut self, label: Label) {
        self.asm.branch(Cond::Eq, Reg::R0, 0, label);
    }
}
