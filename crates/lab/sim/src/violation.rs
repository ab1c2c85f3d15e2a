//! Violations: a rule that a run broke, and when.

use std::fmt;

/// A rule that every run must keep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rule {
    /// A work request completes once, in order, with the expected status.
    Completion,
    /// Every byte is what the model expects, and nothing outside a granted range was written.
    Bytes,
    /// A damaged frame is never accepted, and an intact frame never dropped as damaged.
    Integrity,
    /// Every sent frame is delivered, lost for a counted cause, or in flight.
    Frames,
    /// Everything ends in the time that queue pair attributes and the network allow.
    Progress,
    /// A queue pair keeps its own contract: states, windows, timers.
    State,
}

impl Rule {
    /// Returns the name, as scripts see it.
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

/// A broken rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Virtual time, in nanoseconds.
    pub at_ns: u64,
    /// Text with the observed and the expected behaviour.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, ns) = (self.at_ns / 1_000_000, self.at_ns % 1_000_000);
        write!(f, "{} violated at {ms}.{ns:06} ms: {}", self.rule.name(), self.what)
    }
}

impl std::error::Error for Violation {}

/// A violation without its time.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: Rule,
    pub(crate) what: String,
}

/// Result of a check.
pub(crate) type Checked<T = ()> = Result<T, Broken>;

/// Returns a violation from the calling function unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $rule:ident, $($what:tt)+) => {
        if !$condition {
            return Err(crate::violation::Broken {
                rule: crate::violation::Rule::$rule,
                what: format!($($what)+),
            });
        }
    };
}
pub(crate) use ensure;
