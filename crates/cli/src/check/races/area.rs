//! The memory that operations use, and what names a post.

/// A queue pair of a process.
pub(super) type Queue = (u32, u32);
/// Queue pair, number of the first packet, and time of a post.
pub(super) type Post = (Queue, u64, u64);

/// Where a SEND was placed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Receive {
    /// When the application posted it. Until then it could use the memory for other things.
    pub(super) posted: u64,
    /// Number of the call stack.
    pub(super) site: u32,
}

/// What an operation does to a piece of memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    Read,
    Write,
    /// 8 bytes at once.
    Atomic,
}

impl Effect {
    /// Whether the order of two of them makes a difference that an application can rely on. A READ beside an
    /// atomic operation gets the value before or after it: programs look at locks and counters that way.
    pub(super) fn conflicts(self, other: Effect) -> bool {
        self == Effect::Write || other == Effect::Write
    }
}

/// A piece of memory that an operation uses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Area {
    /// The process that has it.
    pub(super) process: u32,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) effect: Effect,
    /// It is that of the process that posted.
    pub(super) is_local: bool,
    /// The receive in which a SEND was placed.
    pub(super) receive: Option<Receive>,
}

impl Area {
    /// When the process that has it allowed its use: the receive was posted, or its registration counts.
    pub(super) fn since(&self) -> u64 {
        self.receive.map_or(0, |receive| receive.posted)
    }
}
