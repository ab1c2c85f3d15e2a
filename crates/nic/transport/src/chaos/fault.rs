//! The kinds of faults: names for the command line, and what one of them is for the report.

use std::fmt;

/// Makes the enum and its tables from one list: name, whether a plan without a list of faults may have it,
/// and the text of the report.
macro_rules! faults {
    ($($(#[doc = $doc:literal])* $fault:ident $name:literal $default:literal $count:literal,)*) => {
        /// A kind of fault. Each is legal: a correct program survives it.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub enum Fault {
            $($(#[doc = $doc])* $fault,)*
        }

        impl Fault {
            /// All kinds.
            pub const ALL: [Fault; Fault::COUNT] = [$(Fault::$fault),*];
            /// Their names, for messages.
            pub const NAMES: &[&str] = &[$($name),*];
            /// Number of kinds.
            pub const COUNT: usize = [$($name),*].len();

            /// The name on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }

            /// What was injected so often, for the report.
            #[must_use]
            pub fn injected(self) -> &'static str {
                match self { $(Fault::$fault => $count),* }
            }

            /// Whether a plan that lists no faults may have it.
            #[must_use]
            pub fn is_default(self) -> bool {
                match self { $(Fault::$fault => $default),* }
            }
        }
    };
}

faults! {
    /// The bytes of a message become visible in any order, the last ones first.
    Placement "placement" true "payloads placed out of order",
    /// A WRITE is visible only some time after it was acknowledged.
    Visibility "visibility" true "WRITEs visible late",
    /// Send buffers are read some time after the post.
    SendReads "send-reads" true "send buffers read late",
    /// At most a few packets are in flight.
    Windows "windows" true "packets held by a small window",
    /// Completions are late and come in batches.
    Completions "completions" true "completions late",
    /// Completions of different queues overtake each other.
    CqOrder "cq-order" true "completions overtaken by other queues",
    /// Channel events are late.
    Events "events" true "events late",
    /// Channel events come although all completions were polled before.
    WakeUps "wake-ups" true "wake-ups for completions polled before",
    /// A message is refused with an RNR NAK, as if its receive were not posted yet.
    Rnr "rnr" true "RNR NAKs",
    /// A packet of a reliable service is lost.
    Loss "loss" true "packets lost",
    /// A packet of a reliable service is delayed, so that others overtake it.
    Order "order" true "packets overtaken",
    /// A packet of a reliable service arrives two times.
    Duplicates "duplicates" true "packets duplicated",
    /// Datagrams and UC packets are lost, delayed or duplicated. Only if named.
    Datagrams "datagrams" false "datagrams lost, overtaken or duplicated",
    /// The network loses all packets to one queue pair, from one packet on. Only if named.
    ConnectionLoss "loss-of-connection" false "packets of a lost connection",
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of faults; as text their names joined by `+`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Faults(u32);

impl Faults {
    /// Whether the set has this fault.
    #[must_use]
    pub fn contains(self, fault: Fault) -> bool {
        self.0 >> fault as u32 & 1 != 0
    }

    /// The set with this fault.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u32)
    }

    /// The set without this fault.
    #[must_use]
    pub fn without(self, fault: Fault) -> Self {
        Self(self.0 & !(1 << fault as u32))
    }

    /// The faults of the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |fault| self.contains(*fault))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Fault> for Faults {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> Self {
        faults.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Fault::name).collect();
        f.write_str(&names.join("+"))
    }
}
