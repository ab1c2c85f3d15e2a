//! The kinds of findings of `roxie check`: the C library writes them, and the command line program reads them
//! and adds those that need two processes.

macro_rules! kinds {
    ($($kind:ident $name:literal)+) => {
        /// A kind of findings.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum FindingKind { $(#[doc = $name] $kind),+ }

        impl FindingKind {
            /// Its name, as in `docs/check.md`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),+ }
            }

            /// The kind with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$kind),)+ _ => None }
            }
        }
    };
}

/// What happened at the place in the program where access flags were given to a queue pair or memory region.
pub const FLAGS_SET: &str = "flags set";
/// What happened at the place where a memory region was put into its protection domain.
pub const DOMAIN_GIVEN: &str = "domain given";
/// What happened at the place where a receive was refused because the queue was full.
pub const RECEIVE_REFUSED: &str = "receive refused";

kinds! {
    UseAfterDestroy "use-after-destroy" DoubleDestroy "double-destroy" UseAfterFork "use-after-fork"
    ForeignObject "foreign-object" ObjectInUse "object-in-use" RefusedCall "refused-call"
    LeakedQp "leaked-qp" LeakedCq "leaked-cq" LeakedMr "leaked-mr" LeakedPd "leaked-pd" LeakedAh "leaked-ah"
    LeakedSrq "leaked-srq" LeakedChannel "leaked-channel" LeakedMw "leaked-mw" LeakedDm "leaked-dm"
    LeakedXrcd "leaked-xrcd" LeakedContext "leaked-context" LeakedCmId "leaked-cm-id"
    LeakedEventChannel "leaked-event-channel" LeakedWq "leaked-wq" LeakedFlow "leaked-flow"
    LeakedObject "leaked-object" UnacknowledgedCmEvent "unacknowledged-cm-event"
    UnacknowledgedCqEvents "unacknowledged-cq-events" UnacknowledgedEvents "unacknowledged-events"
    AcknowledgedTooOften "acknowledged-too-often" BadLkey "bad-lkey" WrongPd "wrong-pd"
    OutOfBounds "out-of-bounds" MissingAccess "missing-access" MemoryUnmapped "memory-unmapped"
    MemoryFreed "memory-freed" RemoteAccess "remote-access" RemoteInvalidRequest "remote-invalid-request"
    ReceiveTooSmall "receive-too-small" ReceiverNotReady "receiver-not-ready" RnrWait "rnr-wait"
    NoAnswer "no-answer" ReadsDisabled "reads-disabled" CompletionError "completion-error"
    SendBufferChanged "send-buffer-changed" BufferUsedEarly "buffer-used-early"
    TargetUsedEarly "target-used-early" MemoryPolled "memory-polled"
    StatusIgnored "status-ignored" GrhReadAsData "grh-read-as-data" DeregInUse "dereg-in-use"
    QueueFullUnsignaled "queue-full-unsignaled" CqOverflow "cq-overflow" CqCanOverflow "cq-can-overflow"
    UnpolledCompletions "unpolled-completions" UdReceiveWithoutGrh "ud-receive-without-grh"
    MisalignedAtomic "misaligned-atomic" WrongQkey "wrong-qkey" DatagramDropped "datagram-dropped"
    RefusedRequest "refused-request" ReceiveOverlap "receive-overlap" Hang "hang"
    MissedCompletionEvent "missed-completion-event" EndsPathMtu "ends-path-mtu" EndsPsn "ends-psn"
    EndsReads "ends-reads" EndsQpn "ends-qpn" EndsGid "ends-gid" EndsTimeout "ends-timeout"
    EndsRnr "ends-rnr" RaceRemote "race-remote" RaceLocal "race-local" UnorderedRemote "unordered-remote"
    UnorderedLocal "unordered-local" MissingFence "missing-fence"
}

impl FindingKind {
    /// Whether two places make the mistake, which is another one for each two.
    #[must_use]
    pub fn is_of_two(self) -> bool {
        matches!(
            self,
            Self::EndsPathMtu
                | Self::EndsPsn
                | Self::EndsReads
                | Self::EndsQpn
                | Self::EndsGid
                | Self::EndsTimeout
                | Self::EndsRnr
                | Self::RaceRemote
                | Self::RaceLocal
                | Self::UnorderedRemote
                | Self::UnorderedLocal
                | Self::MissingFence
        )
    }
}
