//! What a plan has beside the basic one (`extend.rs`, `hosts.rs` and `kills.rs` draw it), as values.

/// Time (ns) of a run with faults in which the connection manager makes the connections: the timers of the
/// connection manager take minutes.
const CM_TIME_NS: u64 = 700_000_000_000;
/// Additional time (ns) of a calm run with the connection manager: a peer disconnects only when its own work
/// is complete.
pub(super) const CM_CALM_NS: u64 = 60_000_000;

/// Time (ns) after which the connection manager has repeated a message: 4.1 to 4.4 s with the ACK timeout of
/// a calm run.
pub(super) const CM_REPEAT_NS: u64 = 4_500_000_000;
/// Listeners may begin so late (nanoseconds): within the time for which a request waits for its listener.
pub(super) const LISTENS_LATE_NS: u64 = 30_000_000;

/// What a plan has beside the basic one.
#[derive(Clone, Debug, Default)]
pub(super) struct Extension {
    /// Additional time of a calm run (nanoseconds).
    pub(super) calm_ns: u64,
    /// Local ACK timeout of a calm run, as IBA encodes it; `None` for the default of `Plan::timeout`.
    pub(super) calm_timeout: Option<u8>,
    /// One plan for each connection; `None` if the connection manager makes no connections.
    pub(super) cm: Option<Vec<CmPlan>>,
    /// Processes begin to listen so late (nanoseconds).
    pub(super) listens_late_ns: u64,
    /// The hosts, if some have several devices.
    pub(super) hosts: Option<Hosts>,
}

/// How the connection manager makes a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct CmPlan {
    /// The end that sends the request.
    pub(super) active: usize,
    /// When this end sends it.
    pub(super) at_ns: u64,
    /// The passive end rejects the request.
    pub(super) is_rejected: bool,
    /// The ends that disconnect first: one of them or both.
    pub(super) leaves_first: [bool; 2],
}

impl Extension {
    /// Virtual time (nanoseconds) in which a run with faults ends; `None` for the default of
    /// `Plan::time_ns`.
    pub(super) fn time_max_ns(&self) -> Option<u64> {
        self.cm.is_some().then_some(CM_TIME_NS)
    }
}

/// The hosts of a run.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    /// The host of each device.
    pub(super) of: Vec<usize>,
    /// What the opening of a further device takes (nanoseconds).
    pub(super) opening_ns: u64,
}

impl Hosts {
    /// The devices of a host.
    pub(super) fn devices(&self, host: usize) -> impl Iterator<Item = usize> {
        (0..self.of.len()).filter(move |device| self.of[*device] == host)
    }

    /// The device with the thread that listens for all devices of the host of `device`.
    pub(super) fn listener_of(&self, device: usize) -> usize {
        self.devices(self.of[device]).next().unwrap_or(device)
    }
}
