//! What a run has beyond the basic plan, drawn from a stream of its own: the basic plan of a seed stays what it is.

use super::plan::Plan;
use crate::Rng;

/// Hooks of a process in a run whose network loses packets. None of them delays a packet past an ACK timeout.
const IMPAIRMENTS: [&str; 5] = [
    "impair:delay=20us,seed=1",
    "impair:loss=1%,delay=50us,seed=2",
    "impair:loss=0.5%,jitter=30us,seed=3",
    "count+impair:delay=5us,duplicate=1%,seed=4+count",
    "impair:loss=0.1%,delay=200us,jitter=100us,seed=5",
];

/// Draws the extensions of a plan.
pub(super) fn extend(plan: &mut Plan, seed: u64) {
    let rng = &mut Rng::stream(seed, super::EXTENSION);
    if plan.faults.drop_ppm > 0 {
        for app in &mut plan.apps {
            if rng.chance(250) {
                app.hook = rng.pick(&IMPAIRMENTS);
            }
        }
    }
}
