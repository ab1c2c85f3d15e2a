//! Processes that are killed in a run, as values.

/// The death of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Death {
    pub(super) process: usize,
    /// When it is killed, and how much later its connections break and its names are free.
    pub(super) at_ns: u64,
    pub(super) exits_ns: u64,
    pub(super) releases_ns: u64,
}

/// A run with killed processes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Kills {
    pub(super) deaths: Vec<Death>,
    /// A process that is stopped, from when to when.
    pub(super) stop: Option<(usize, u64, u64)>,
    /// Processes of one host that watch each other.
    pub(super) neighbours: Vec<(usize, usize)>,
    /// A process that starts at this time; until then its host does not know it.
    pub(super) starts: Option<(usize, u64)>,
    /// Another process of the host of the killed ones survives.
    pub(super) survives: bool,
    /// Processes of the first host, which are not killed.
    pub(super) peers: usize,
    /// The local ACK timeout of every queue pair, as IBA encodes it.
    pub(super) timeout: u8,
    /// Each peer is told so long after a death; `None` if nothing tells an idle peer.
    pub(super) told_ns: Option<u64>,
}

impl Kills {
    /// The process is killed.
    pub(super) fn kills(&self, process: usize) -> bool {
        self.deaths.iter().any(|death| death.process == process)
    }

    /// When other processes or the kernel can tell the peers of a killed process.
    pub(super) fn gone_ns(&self, process: usize) -> Option<u64> {
        let own = self.deaths.iter().find(|death| death.process == process)?;
        let released = self.deaths.iter().map(|death| death.at_ns + death.exits_ns + death.releases_ns).max();
        if self.survives { Some(own.at_ns + own.exits_ns) } else { released }
    }
}
