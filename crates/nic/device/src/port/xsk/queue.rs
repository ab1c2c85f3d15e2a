//! One receive queue of an interface and its transmit queue: an AF_XDP socket with its rings.

use sys::xdp::{Rings, XskSocket};

/// Counts of all queues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SocketCounters {
    /// System calls that made the kernel send.
    pub(crate) kicks: u64,
    /// Kicks after which the kernel had not taken everything, in spite of repetition.
    pub(crate) stalls: u64,
    /// Queues of drivers that send by interrupts only.
    pub(crate) interrupts: u64,
    /// Kicks while the interface was down.
    pub(crate) down: u64,
    /// Kicks that failed for any other reason.
    pub(crate) errors: u64,
}

/// A socket and its rings.
#[derive(Debug)]
pub(crate) struct Queue {
    // Unmapped before the socket is closed: fields are dropped in order.
    pub(crate) rings: Rings,
    pub(super) socket: XskSocket,
    /// The kernel has not taken all packets in the transmit ring.
    pub(super) stalled: bool,
    /// Packets were pushed since the last kick.
    pub(super) dirty: bool,
    /// System calls run the driver's receive loop.
    pub(super) polls: bool,
    /// Chunks that its fill ring still needs. Received chunks return to the fill ring of the same queue,
    /// so a busy queue does not take the memory of the others.
    pub(super) chunks_due: u32,
    /// Transmit units that it holds.
    pub(super) units_held: usize,
    /// Since when it refuses packets, and has completed none.
    pub(super) full_since_ns: Option<u64>,
    /// It refused packets when it was asked last.
    pub(super) has_refused: bool,
}

/// Kicks without any progress before the rest is left for later.
const KICKS_MAX: u32 = 64;

impl Queue {
    /// The last of `descriptors` taken from the receive ring was processed: returns their entries to the
    /// kernel.
    #[inline]
    pub(crate) fn release(&mut self, descriptors: u32) {
        self.rings.rx.release();
        self.chunks_due += descriptors;
    }

    /// Makes the kernel send the submitted packets; sets `gone` if the interface was removed.
    pub(super) fn kick(&mut self, counters: &mut SocketCounters, gone: &mut bool) {
        let mut waiting = self.rings.tx.waiting();
        let mut futile = 0;
        while waiting > 0 && self.rings.tx.needs_wakeup() {
            counters.kicks += 1;
            let woken = self.socket.wake_tx();
            let left = self.rings.tx.waiting();
            match woken {
                Ok(()) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                    Some(libc::ENETDOWN) => {
                        counters.down += 1;
                        break;
                    }
                    // Unbound, because the interface was removed.
                    Some(libc::ENXIO | libc::ENODEV) => {
                        *gone = true;
                        break;
                    }
                    // ENOMEM and the like: the packets stay queued, and are tried again.
                    _ => {
                        counters.errors += 1;
                        break;
                    }
                },
            }
            if left < waiting {
                futile = 0;
            } else {
                futile += 1;
                if futile == KICKS_MAX && std::mem::take(&mut self.polls) {
                    // Busy polling replaces waking the driver up, and not every driver sends in its
                    // receive loop: virtio_net does not.
                    counters.interrupts += 1;
                    let _gone = self.socket.unset_busy_poll();
                    futile = 0;
                } else if futile == KICKS_MAX {
                    counters.stalls += 1;
                    break;
                }
                // The receiver may need this CPU to make room.
                std::thread::yield_now();
            }
            waiting = left;
        }
        self.stalled = waiting > 0;
    }
}
