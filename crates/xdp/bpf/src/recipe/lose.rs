//! Random packet loss, to imitate a bad link.

use super::emit::Emit;
use super::{RecipeError, in_range};
use crate::helper::Helper;
use crate::insn::{Cond, Reg};

/// Drops packets at random and independently of each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lose {
    /// Average number of packets lost per million, 1..=999999.
    pub per_million: u32,
}

impl Lose {
    pub(super) fn emit(self, emit: &mut Emit) -> Result<(), RecipeError> {
        in_range((1..1_000_000).contains(&self.per_million), "the loss rate")?;
        // Number of the 2^32 random values that drop the packet.
        let dropped = (u64::from(self.per_million) << 32) / 1_000_000;
        let drop = emit.drop();
        emit.asm.call(Helper::GetPrandomU32).branch32(Cond::Lt, Reg::R0, dropped as u32 as i32, drop);
        Ok(())
    }
}
