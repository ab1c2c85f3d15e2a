//! What a run can find: a promise that was not kept, and where.

use std::fmt;

/// Which promise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rule {
    /// A work request completes once, in order, with the status that it must have.
    Completion,
    /// Every byte is what the model says, and nothing outside a granted range was written.
    Bytes,
    /// A damaged frame is never taken for a whole one, nor a whole one refused.
    Integrity,
    /// Frames sent are frames delivered, lost for a counted cause, or on their way.
    Frames,
    /// Everything ends in bounded time, as queue pair attributes and network allow.
    Progress,
    /// A queue pair keeps its own contract: states, windows, timers.
    State,
}

impl Rule {
    /// Its name, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completion => "completion",
            Self::Bytes => "bytes",
            Self::Integrity => "integrity",
            Self::Frames => "frames",
            Self::Progress => "progress",
            Self::State => "state",
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// Virtual time, in nanoseconds.
    pub at_ns: u64,
    /// What was seen and what was expected, for people.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, ns) = (self.at_ns / 1_000_000, self.at_ns % 1_000_000);
        write!(f, "{} violated at {ms}.{ns:06} ms: {}", self.rule.name(), self.what)
    }
}

impl std::error::Error for Violation {}

/// A violation that does not know the time yet.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: Rule,
    pub(crate) what: String,
}

/// Result of a check.
pub(crate) type Checked<T = ()> = Result<T, Broken>;

/// Ends the run unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $rule:ident, $($what:tt)+) => {
        if !$condition {
            return Err(crate::violation::Broken { rule: crate::violation::Rule::$rule, what: format!($($what)+) });
        }
    };
}
pub(crate) use ensure;
