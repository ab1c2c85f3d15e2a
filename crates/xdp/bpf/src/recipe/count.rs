//! Counters of packets and bytes per verdict.

use super::emit::Emit;
use super::frame;
use crate::helper::Helper;
use crate::insn::{Reg, Size};
use crate::map::MapDef;
use crate::xdp::XdpAction;

/// Name of the per-CPU array with one [`Counter`] for each verdict; the number of the verdict is the index.
pub const COUNTERS: &str = "counters";

/// A value of [`COUNTERS`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counter {
    /// Packets with this verdict.
    pub packets: u64,
    /// Bytes of these packets when they left the program, with all fragments.
    pub bytes: u64,
}

impl Counter {
    /// Length of a value in bytes.
    pub const LEN: usize = 16;

    /// Decodes the value of one CPU.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Counter {
        let (packets, bytes) = bytes.split_at(8);
        let number = |half: &[u8]| half.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        Counter { packets: number(packets), bytes: number(bytes) }
    }
}

/// Emits code that counts the verdict in R0 and keeps it there.
pub(super) fn emit(emit: &mut Emit) {
    let counters =
        emit.asm.map(MapDef::percpu_array(COUNTERS, Counter::LEN as u32, XdpAction::ALL.len() as u32));
    let out = emit.asm.label();
    emit.asm.mov(Reg::R7, Reg::R0).store(Size::W, Reg::R10, frame::KEY, Reg::R0);
    emit.lookup(counters, frame::KEY);
    emit.if_null(out);
    emit.asm.mov(Reg::R8, Reg::R0).mov(Reg::R1, Reg::R6).call(Helper::XdpGetBuffLen);
    emit.add_to(Reg::R8, 0, 1);
    emit.add_to(Reg::R8, 8, Reg::R0);
    emit.asm.bind(out).mov(Reg::R0, Reg::R7);
}
