//! Scheduling: when something leaves, and when a thread polls, yields, sleeps or is woken.

pub(crate) mod background;
pub(crate) mod doorbell;
mod reliance;
pub(crate) mod turns;
