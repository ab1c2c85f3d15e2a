//! AF_XDP: packets between a queue of an interface and memory of this process (linux/if_xdp.h).
//!
//! Memory is a [`Umem`], split into [`Chunk`]s. Four rings move them: the fill ring gives empty chunks to
//! the kernel, the receive ring returns them with packets, the transmit ring takes packets, the
//! completion ring returns their chunks.
//!
//! Invariant: a chunk belongs to the holder of its token. A token that is pushed to a ring no longer
//! exists until the kernel returns the chunk, so no byte belongs to this process and the kernel at once.

mod returns;
mod ring;
mod rings;
mod socket;
mod umem;

pub use rings::{CompletionRing, FillRing, RxPiece, RxRing, TxRing};
pub use socket::{Bind, Rings, XskSocket, XskStatistics};
pub use umem::{Chunk, Region, Umem, UmemConfig};

#[cfg(all(test, not(loom)))]
mod tests;
