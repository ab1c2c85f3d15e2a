//! Errors of the assembler.

use std::fmt;

use super::{Function, Label};

/// Reason why [`Asm::finish`](super::Asm::finish) returns no program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AsmError {
    /// The program has no instructions.
    Empty,
    /// An instruction jumps to a label that was never bound.
    NotBound(Label),
    /// The label was bound twice, or belongs to another assembler.
    BoundTwice(Label),
    /// The function was declared but never defined.
    NotDefined(Function),
    /// The function was defined twice, or belongs to another assembler.
    DefinedTwice(Function),
    /// The named function has more than five arguments.
    TooManyArguments(String),
    /// Two different maps have this name.
    MapRedefined(String),
    /// The distance of a jump does not fit into its instruction.
    TooFar {
        /// Slot of the jump.
        slot: usize,
        /// Distance in slots.
        distance: i64,
    },
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsmError::Empty => f.write_str("the program has no instructions"),
            AsmError::NotBound(label) => write!(f, "label {} is used but not bound", label.0),
            AsmError::BoundTwice(label) => {
                write!(f, "label {} is bound twice, or belongs to another program", label.0)
            }
            AsmError::NotDefined(function) => {
                write!(f, "function {} is declared but has no code", function.0)
            }
            AsmError::DefinedTwice(function) => {
                write!(f, "function {} is defined twice, or belongs to another program", function.0)
            }
            AsmError::TooManyArguments(name) => write!(f, "function {name} has more than five arguments"),
            AsmError::MapRedefined(name) => write!(f, "two different maps are named {name}"),
            AsmError::TooFar { slot, distance } => {
                write!(f, "the jump at slot {slot} is too far for its instruction: {distance} slots")
            }
        }
    }
}

impl std::error::Error for AsmError {}
