//! Findings: what went wrong, with an explanation.

use std::collections::HashMap;

use wire::capture::Seen;

/// Findings kept; more are only counted.
const FINDINGS_MAX: usize = 10_000;
/// Further packets that a finding names; more are only counted.
const ALSO_MAX: usize = 1000;

/// A packet of a capture.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct At {
    /// Number of the packet, from 1.
    pub number: u64,
    /// Its time, nanoseconds since 1970.
    pub ns: u64,
}

/// Defines the kinds from rows: name in JSON and text, confidence in a complete capture, and properties.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal $confidence:ident $($property:ident)*,)*) => {
        /// The kind of a finding.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// Its name in JSON and text: `lost-request`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// How far a finding of this kind is proved by the packets of a complete capture.
            #[must_use]
            pub const fn confidence(self) -> Confidence {
                match self {
                    $(Self::$kind => Confidence::$confidence,)*
                }
            }

            const fn properties(self) -> &'static [Property] {
                match self {
                    $(Self::$kind => &[$(Property::$property),*],)*
                }
            }
        }
    };
}

kinds! {
    /// A request did not reach its receiver.
    LostRequest = "lost-request" Medium Absence,
    /// A request was retransmitted, and both transmissions were answered: the answer was late.
    LateAnswer = "late-answer" Medium Absence,
    /// An ACK did not reach the requester.
    LostAck = "lost-ack" Medium Absence,
    /// A READ response or an atomic's result did not reach the requester.
    LostResponse = "lost-response" Medium Absence,
    /// Packets of an unreliable connection are missing.
    LostUnreliable = "lost-unreliable" Medium Absence,
    /// A request was retransmitted until the requester gave up.
    NoAnswer = "no-answer" Medium Absence Fatal,
    /// Packets are out of order.
    Reordered = "reordered" High Absence,
    /// Packets were duplicated in transit.
    Duplicated = "duplicated" Medium,
    /// The receiver had no receive posted for some time.
    ReceiverNotReady = "receiver-not-ready" High,
    /// The receiver had no receive posted until the sender gave up.
    ReceiverNeverReady = "receiver-never-ready" Medium Fatal,
    /// Remote access error: key, range or access right is wrong.
    AccessRefused = "access-refused" High Fatal,
    /// Remote invalid request.
    RequestRefused = "request-refused" High Fatal,
    /// Remote operational error.
    ResponderFailed = "responder-failed" High Fatal,
    /// Full packets do not have the size of the path MTU.
    WrongMtu = "wrong-mtu" High,
    /// A Q_Key or P_Key differs from that of other packets to the queue pair.
    WrongKey = "wrong-key" High,
    /// The responder expects other packet sequence numbers than the requester sends.
    WrongPsn = "wrong-psn" High Fatal,
    /// An ACK for a request that was not captured.
    UnknownAck = "unknown-ack" Medium Absence,
    /// The message sequence number of the responder does not fit the captured messages.
    WrongMsn = "wrong-msn" Medium Absence,
    /// The opcodes of consecutive packets do not fit together.
    OpcodeSequence = "opcode-sequence" High,
    /// The length of a message is not the one that its first packet announces.
    WrongLength = "wrong-length" High,
    /// A packet was retransmitted with other bytes.
    ChangedBytes = "changed-bytes" High,
    /// A packet has a wrong invariant CRC.
    BadIcrc = "bad-icrc" High,
    /// A packet is malformed or was cut in transit.
    Malformed = "malformed" High,
    /// A packet was sent in several IP fragments.
    Fragmented = "fragmented" High,
    /// A connection request was rejected.
    Rejected = "rejected" High Fatal,
    /// A message of the connection manager was retransmitted.
    LostCm = "lost-cm" Medium Absence,
    /// A connection request had no answer.
    NoCmAnswer = "no-cm-answer" Medium Absence Fatal,
    /// Congestion marks or congestion notifications.
    Congestion = "congestion" High Sign,
    /// Pause frames stopped a link.
    LinkPaused = "link-paused" High Sign,
    /// Neighbours on a link announce a change, or different settings.
    LinkChange = "link-change" High Sign,
    /// A part of a message or its answer took longer than a second.
    Slow = "slow" High Absence Sign,
    /// A busy connection had no request for more than a second.
    Pause = "pause" Low Absence Sign,
    /// The capture is incomplete: packets, directions or headers are missing.
    CaptureLoss = "capture-loss" High,
}

#[derive(Clone, Copy, PartialEq)]
enum Property {
    Absence,
    Sign,
    Fatal,
}

impl Kind {
    /// Whether it depends on a packet that was not captured, or captured late. In an incomplete capture it
    /// proves nothing.
    #[must_use]
    pub fn is_absence(self) -> bool {
        self.properties().contains(&Property::Absence)
    }

    /// Whether it is a sign of congestion or slowness, not an error.
    #[must_use]
    pub fn is_sign(self) -> bool {
        self.properties().contains(&Property::Sign)
    }

    /// Whether it ended a connection; other kinds cost time or are signs.
    #[must_use]
    pub fn is_fatal(self) -> bool {
        self.properties().contains(&Property::Fatal)
    }
}

/// How far the packets of the capture prove a statement.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Confidence {
    /// The capture lacks what the statement depends on.
    Low,
    /// The statement is the likely cause of what was captured; there are others.
    Medium,
    /// A packet of the capture proves it.
    High,
}

impl Confidence {
    /// Its name in JSON and text: `high`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// The first packet concerned.
    pub at: At,
    /// Number of the packet that revealed it.
    pub shown_by: u64,
    /// The direction concerned: `10.0.0.1 > 10.0.0.2 QP 0x000011`.
    pub subject: String,
    /// What happened, the likely cause, and what to do: two or three sentences.
    pub text: String,
    /// Occurrences; 0 if the finding was withdrawn.
    pub count: u64,
    /// First packets of further occurrences, with the packets that revealed them; at most 1000.
    pub also: Vec<(u64, u64)>,
    /// How far the capture proves it.
    pub confidence: Confidence,
}

impl Finding {
    /// A finding that occurred once.
    #[must_use]
    pub fn new(kind: Kind, at: At, shown_by: u64, subject: String, text: String) -> Self {
        let confidence = kind.confidence();
        Self { kind, at, shown_by, subject, text, count: 1, also: Vec::new(), confidence }
    }

    /// Its text without numbers, whatever their unit, form or grammatical number: equal findings differ in
    /// these only.
    fn shape(&self) -> String {
        const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
        let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
        let mut shape = String::new();
        let mut after_number = false;
        for word in self.text.split(' ') {
            let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
            let is_unit = after_number && UNITS.contains(&bare);
            // `packets 3 to 5` is `packet 3`.
            let is_end = after_number && bare == "to" || shape.ends_with(" to") && is_number(bare);
            after_number = is_number(bare);
            if !after_number && !is_unit && !is_end {
                shape.push(' ');
                shape.push_str(bare.strip_suffix('s').unwrap_or(bare));
            }
        }
        shape
    }

    /// `, 3 times` with further packets; empty if it occurred once.
    #[must_use]
    pub fn times(&self) -> String {
        if self.count < 2 { String::new() } else { format!(" ({} times)", self.count) }
    }
}

/// The findings of a capture.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    unlisted: u64,
}

impl Findings {
    /// Adds a finding and returns its index; `None` at the limit of findings.
    pub fn add(&mut self, finding: Finding) -> Option<usize> {
        if self.list.len() >= FINDINGS_MAX {
            self.unlisted += 1;
            return None;
        }
        self.list.push(finding);
        Some(self.list.len() - 1)
    }

    /// The finding at an index returned by [`Findings::add`].
    pub fn at(&mut self, index: Option<usize>) -> Option<&mut Finding> {
        self.list.get_mut(index?)
    }

    /// The findings so far, withdrawn ones included.
    pub fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.list.iter()
    }

    /// Withdraws the finding at an index returned by [`Findings::add`]: it has another explanation.
    pub fn withdraw(&mut self, index: Option<usize>) {
        if let Some(finding) = self.at(index) {
            finding.count = 0;
        }
    }

    /// Removes the findings that depend on missing packets ([`Kind::is_absence`]), and with `bursts` those
    /// about the form of packets: a burst looks like one packet. Returns their number.
    pub fn withdraw_absences(&mut self, bursts: bool) -> usize {
        use Kind::{BadIcrc, ChangedBytes, Malformed, OpcodeSequence, WrongLength, WrongMtu};
        self.list.retain(|finding| finding.count > 0);
        let all = self.list.len();
        let forms = [WrongMtu, OpcodeSequence, WrongLength, ChangedBytes, BadIcrc, Malformed];
        self.list.retain(|finding| !(finding.kind.is_absence() || bursts && forms.contains(&finding.kind)));
        all - self.list.len()
    }

    /// The findings in the order of their first packets, and the number of those beyond the limit. Findings
    /// of one kind about one direction that differ in their numbers only are merged.
    #[must_use]
    pub fn sorted(mut self) -> (Vec<Finding>, u64) {
        self.list.retain(|finding| finding.count > 0);
        self.list.sort_by_key(|finding| finding.at.number);
        let mut known: HashMap<(Kind, String, String), usize> = HashMap::new();
        let mut merged: Vec<Finding> = Vec::new();
        for finding in self.list {
            let key = (finding.kind, finding.subject.clone(), finding.shape());
            match known.get(&key).and_then(|at| merged.get_mut(*at)) {
                Some(first) => {
                    first.count += finding.count;
                    first.confidence = first.confidence.max(finding.confidence);
                    if first.also.len() < ALSO_MAX {
                        first.also.push((finding.at.number, finding.shown_by));
                    }
                }
                None => {
                    known.insert(key, merged.len());
                    merged.push(finding);
                }
            }
        }
        (merged, self.unlisted)
    }

    /// Lowers the confidence of the findings that an answer was not seen: it may be among packets of `kinds`.
    pub fn doubt_unanswered(&mut self, kinds: &str) {
        let is_unanswered = |f: &&mut Finding| matches!(f.kind, Kind::NoAnswer | Kind::NoCmAnswer);
        for finding in self.list.iter_mut().filter(is_unanswered) {
            finding.confidence = Confidence::Low;
            finding.text.push_str(&format!(" The answers may be among {kinds}."));
        }
    }

    /// Lowers the confidence of the findings that rest on times: those of the capture are wrong.
    pub fn doubt_times(&mut self) {
        for finding in self.list.iter_mut().filter(|f| matches!(f.kind, Kind::Slow | Kind::Pause)) {
            finding.confidence = Confidence::Low;
        }
    }

    /// Lowers the confidence of the findings that depend on missing packets: the capture lacks some.
    pub fn doubt_absences(&mut self) {
        for finding in self.list.iter_mut().filter(|finding| finding.kind.is_absence()) {
            finding.confidence = Confidence::Low;
        }
    }
}

/// `packet 3`, or `packets 3 to 5`.
pub(super) fn packets(first: At, last: At) -> String {
    match (first.number, last.number) {
        (first, last) if first == last => format!("packet {first}"),
        (first, last) => format!("packets {first} to {last}"),
    }
}

/// The direction of a packet: `10.0.0.1 > 10.0.0.2 QP 0x000011`.
#[must_use]
pub fn subject(seen: &Seen<'_>) -> String {
    let qp = seen.bth.map(|bth| format!(" QP {}", bth.dest_qp)).unwrap_or_default();
    format!("{} > {}{qp}", seen.ip.src(), seen.ip.dst())
}

/// The earliest of some packets; number 0 is none.
pub(super) fn earliest(packets: impl IntoIterator<Item = At>) -> At {
    packets.into_iter().filter(|at| at.number != 0).min_by_key(|at| at.number).unwrap_or_default()
}
