//! What went wrong, in words.

use wire::capture::Seen;

/// Findings kept with their words; more are only counted.
const FINDINGS_MAX: usize = 10_000;

/// Where in a capture something is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct At {
    /// Number of the packet, from 1.
    pub number: u64,
    /// Its time, nanoseconds since 1970.
    pub ns: u64,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A request did not arrive.
    LostRequest,
    /// An acknowledgement did not arrive.
    LostAck,
    /// A READ response or an atomic's result did not arrive.
    LostResponse,
    /// A packet of an unreliable connection did not arrive.
    LostUnreliable,
    /// The peer does not answer at all.
    NoAnswer,
    /// Packets overtook each other.
    Reordered,
    /// Packets came twice.
    Duplicated,
    /// The receiver had no receive posted for a while.
    ReceiverNotReady,
    /// The receiver had no receive posted, and the sender gave up.
    ReceiverNeverReady,
    /// Key, range or permission was wrong.
    AccessRefused,
    /// The request was not allowed or made no sense.
    RequestRefused,
    /// The responder's own fault.
    ResponderFailed,
    /// Payloads do not have the size the path MTU asks for.
    WrongMtu,
    /// A datagram's Q_Key or a P_Key is not the receiver's.
    WrongKey,
    /// A packet was damaged on its way.
    BadIcrc,
    /// A packet makes no sense.
    Malformed,
    /// A connection was refused.
    Rejected,
    /// A message of the connection manager did not arrive.
    LostCm,
    /// Nobody answers the connection manager.
    NoCmAnswer,
    /// Routers or receivers report congestion.
    Congestion,
    /// An answer took very long.
    Slow,
    /// Whoever made the capture lost packets, or left some out.
    CaptureLoss,
}

impl Kind {
    /// Its name, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostRequest => "lost-request",
            Self::LostAck => "lost-ack",
            Self::LostResponse => "lost-response",
            Self::LostUnreliable => "lost-unreliable",
            Self::NoAnswer => "no-answer",
            Self::Reordered => "reordered",
            Self::Duplicated => "duplicated",
            Self::ReceiverNotReady => "receiver-not-ready",
            Self::ReceiverNeverReady => "receiver-never-ready",
            Self::AccessRefused => "access-refused",
            Self::RequestRefused => "request-refused",
            Self::ResponderFailed => "responder-failed",
            Self::WrongMtu => "wrong-mtu",
            Self::WrongKey => "wrong-key",
            Self::BadIcrc => "bad-icrc",
            Self::Malformed => "malformed",
            Self::Rejected => "rejected",
            Self::LostCm => "lost-cm",
            Self::NoCmAnswer => "no-cm-answer",
            Self::Congestion => "congestion",
            Self::Slow => "slow",
            Self::CaptureLoss => "capture-loss",
        }
    }

    /// Whether it rests on what is not in the capture, or not where or when it should be: holes of the capture itself look the same.
    #[must_use]
    pub const fn is_absence(self) -> bool {
        matches!(
            self,
            Self::LostRequest
                | Self::LostAck
                | Self::LostResponse
                | Self::LostUnreliable
                | Self::NoAnswer
                | Self::Reordered
                | Self::LostCm
                | Self::NoCmAnswer
                | Self::Slow
        )
    }

    /// Whether it ended something, rather than costing time.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        matches!(
            self,
            Self::NoAnswer
                | Self::ReceiverNeverReady
                | Self::AccessRefused
                | Self::RequestRefused
                | Self::ResponderFailed
                | Self::Rejected
                | Self::NoCmAnswer
        )
    }
}

/// One thing that went wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// The first packet it shows in.
    pub at: At,
    /// The packet that gave it away.
    pub shown_by: u64,
    /// Where, e.g. `10.0.0.1 > 10.0.0.2 QP 0x000011`.
    pub whose: String,
    /// In plain language, a sentence or two.
    pub text: String,
    /// How often, if the same happens again and again.
    pub count: u64,
}

/// All findings of a capture.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    unlisted: u64,
}

impl Findings {
    /// Adds one; its index, unless there are too many.
    pub fn add(&mut self, finding: Finding) -> Option<usize> {
        if self.list.len() >= FINDINGS_MAX {
            self.unlisted += 1;
            return None;
        }
        self.list.push(finding);
        Some(self.list.len() - 1)
    }

    /// The one at an index that [`Findings::add`] gave.
    pub fn at(&mut self, index: Option<usize>) -> Option<&mut Finding> {
        self.list.get_mut(index?)
    }

    /// Takes back the one at an index that [`Findings::add`] gave: it has another explanation.
    pub fn withdraw(&mut self, index: Option<usize>) {
        if let Some(finding) = self.at(index) {
            finding.count = 0;
        }
    }

    /// Takes back what rests on packets that are not in the capture; how many that were.
    pub fn retract_losses(&mut self) -> usize {
        self.list.retain(|finding| finding.count > 0);
        let all = self.list.len();
        self.list.retain(|finding| !finding.kind.is_absence());
        all - self.list.len()
    }

    /// In the order of the packets they show in.
    #[must_use]
    pub fn sorted(mut self) -> (Vec<Finding>, u64) {
        self.list.retain(|finding| finding.count > 0);
        self.list.sort_by_key(|finding| finding.at.number);
        (self.list, self.unlisted)
    }
}

/// `10.0.0.1 > 10.0.0.2 QP 0x000011`.
#[must_use]
pub fn whose(seen: &Seen<'_>) -> String {
    let qp = seen.bth.map(|bth| format!(" QP {}", bth.dest_qp)).unwrap_or_default();
    format!("{} > {}{qp}", seen.ip.src(), seen.ip.dst())
}
