//! Packets lost at random, as a bad link loses them.

use super::RecipeError;
use super::emit::Emit;
use crate::helper::Helper;
use crate::insn::{Cond, Reg};

/// Drops packets at random, each without regard to the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lose {
    /// How many of a million are lost on average, 1..=999999.
    pub per_million: u32,
}

impl Lose {
    pub(super) fn emit(self, emit: &mut Emit) -> Result<(), RecipeError> {
        if !(1..1_000_000).contains(&self.per_million) {
            return Err(RecipeError::Range("the loss"));
        }
        // Of the 2^32 values of the random number.
        let unlucky = (u64::from(self.per_million) << 32) / 1_000_000;
        let drop = emit.drop();
        emit.asm.call(Helper::GetPrandomU32).branch32(Cond::Lt, Reg::R0, unlucky as u32 as i32, drop);
        Ok(())
    }
}
