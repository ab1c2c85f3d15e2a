//! Why a frame did not arrive.

macro_rules! causes {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// Reason why a frame did not reach a queue pair.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum Cause {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Cause {
            /// All causes; `cause as usize` is the index.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name of the counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

causes! {
    /// Lost at random.
    Drop = "drop",
    /// The frame was the k-th of its kind.
    Kth = "kth",
    /// The link was in its bad state.
    Burst = "burst",
    /// Bits were flipped, and the receiver detected it.
    Corrupt = "corrupt",
    /// The frame was cut, and the receiver detected it.
    Truncate = "truncate",
    /// Sender and receiver were in different parts of a partitioned network.
    Partition = "partition",
    /// The receiving node had vanished.
    Vanish = "vanish",
    /// The queue of the switch was full.
    FullQueue = "full-queue",
    /// The receive ring of the node was full.
    FullRing = "full-ring",
    /// The receiving node had no buffer.
    EmptyPool = "empty-pool",
    /// The forged frame is for no queue pair.
    NoQueuePair = "no-queue-pair",
    /// The forged frame would have been believed, as one of millions is.
    Lucky = "lucky",
}
