//! The faults of `roxie run --chaos` in the device: what an adversarial, legal NIC does.
//!
//! [`transport::chaos`] decides, from the seed, whether a fault happens; the modules here do it, each at one
//! place of the data path. `late_writes.rs`: when and in which order bytes reach application memory.
//! `departures.rs`: when send buffers are read. `completions.rs`: completions and events. `receives.rs`: RNR
//! NAKs. The network is a stage of the egress hook (crate `roxie-hook`, `faults.rs`). Without `--chaos` each
//! place costs one comparison with `None`.
//!
//! Times in this module bound how late something is; they do not decide whether it is late.

pub(crate) mod completions;
pub(crate) mod departures;
pub(crate) mod late_writes;
pub(crate) mod receives;

use std::fmt::Write;
use std::sync::Arc;

use transport::chaos::{Chaos, ChaosPlan, PlanError};

use departures::Departures;
use receives::Receives;

/// What an engine keeps for the faults of its queue pairs.
pub(crate) struct EngineChaos {
    pub(crate) chaos: Arc<Chaos>,
    pub(crate) departures: Departures,
    pub(crate) receives: Receives,
}

impl EngineChaos {
    pub(crate) fn new(chaos: &Arc<Chaos>) -> Box<Self> {
        let chaos = Arc::clone(chaos);
        Box::new(Self { chaos, departures: Departures::default(), receives: Receives::default() })
    }
}

/// The name of the variable.
pub const VARIABLE: &str = "ROXIE_CHAOS";

/// Takes the plan from `ROXIE_CHAOS`; `None` if it is unset or empty.
///
/// # Errors
/// What is wrong with the text.
pub fn plan_from_env() -> Result<Option<ChaosPlan>, PlanError> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().into_owned();
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

/// One line: the plan, and how often each fault was injected.
pub(crate) fn report(chaos: &Chaos) -> String {
    let mut line = format!("chaos {}:", chaos.plan());
    let counts = chaos.counts();
    if counts.is_empty() {
        line.push_str(" no fault was injected");
    }
    for (at, (fault, count)) in counts.iter().enumerate() {
        let separator = if at == 0 { " " } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(line, "{separator}{count} {}", fault.injected());
    }
    line
}
