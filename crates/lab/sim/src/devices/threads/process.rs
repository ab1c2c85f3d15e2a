//! A virtual process.

use roxie::verbs::Device;
use sys::Usage;

use super::Run;

#[derive(Default, Clone)]
pub(crate) struct Process {
    /// SIGSTOP until then.
    pub(crate) stopped_until: u64,
    /// Killed: its threads do not run any more.
    pub(crate) is_dead: bool,
    /// Of the threads of its application.
    pub(super) usage: Usage,
    /// Sleeps of its progress thread that ended early and in vain, in a row.
    pub(super) vain: u32,
    /// What its host had taken from the GSI socket when the last of them ended.
    pub(super) taken_by_host: u64,
    pub(super) device: Option<Device>,
}

impl Process {
    /// Counts a context switch, if an application thread makes it.
    pub(super) fn count_switch(&mut self, is_progress: bool, run: &Run) {
        match run {
            _ if is_progress => {}
            Run::Sleeps { .. } | Run::WaitsForLock => self.usage.voluntary += 1,
            Run::Preempted(_) => self.usage.involuntary += 1,
            Run::Ready | Run::Computes(_) | Run::Ended => {}
        }
    }
}
