//! Mistakes in the use of the assembler.

use std::fmt;

use super::{Function, Label};

/// Why there is no program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AsmError {
    /// No instruction was given.
    Empty,
    /// Something jumps to a label that was never bound.
    NotBound(Label),
    /// A label has two places, or is another program's.
    BoundTwice(Label),
    /// A function was declared and has no code.
    NotDefined(Function),
    /// A function has two places, or is another program's.
    DefinedTwice(Function),
    /// A function has more than five arguments.
    TooManyArguments(String),
    /// Two different maps have this name.
    MapRedefined(String),
    /// The distance does not fit into the instruction.
    TooFar {
        /// The jump.
        slot: usize,
        /// Slots to skip.
        distance: i64,
    },
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsmError::Empty => f.write_str("the program has no instructions"),
            AsmError::NotBound(label) => write!(f, "label {} is used and not bound", label.0),
            AsmError::BoundTwice(label) => {
                write!(f, "label {} is bound twice, or of another program", label.0)
            }
            AsmError::NotDefined(function) => {
                write!(f, "function {} is declared and has no code", function.0)
            }
            AsmError::DefinedTwice(function) => {
                write!(f, "function {} is defined twice, or of another program", function.0)
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
