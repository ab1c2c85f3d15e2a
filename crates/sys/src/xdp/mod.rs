//! AF_XDP: packets between a queue of an interface and memory of ours (linux/if_xdp.h).
//!
//! Memory is a [`Umem`], cut into [`Chunk`]s. Four rings move them: the fill ring gives empty chunks to the kernel,
//! the receive ring brings them back with packets, the transmit ring takes packets, the completion ring gives their
//! chunks back. Invariant: a chunk belongs to whoever holds its token, and a token that goes into a ring is gone until
//! the kernel returns the chunk; so no byte is ours and the kernel's at once.

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
