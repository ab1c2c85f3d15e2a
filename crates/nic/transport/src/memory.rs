//! The interface between the protocol and memory: reads, writes and atomics by key and address.
//!
//! The device implements it with raw pointers, tests implement it with a vector; so this crate needs no
//! unsafe code.

use bitflags::bitflags;
use wire::{Lkey, Qpn, Rkey};

/// Number of a protection domain. A queue pair can use only keys of its own domain.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub struct PdId(pub u32);

bitflags! {
    /// Access that a key or a queue pair permits; the bits are those of `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
    pub struct Access: u32 {
        /// The local queue pair may write (receive buffers, READ and atomic results).
        const LOCAL_WRITE = 1;
        /// The peer may WRITE.
        const REMOTE_WRITE = 2;
        /// The peer may READ.
        const REMOTE_READ = 4;
        /// The peer may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const MW_BIND = 16;
        /// Addresses start at zero.
        const ZERO_BASED = 32;
        /// Pages may be faulted in.
        const ON_DEMAND = 64;
        /// The peer may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
    }
}

/// Why an access was refused. A refused access reads and writes nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessFault {
    /// No such key, or it was invalidated.
    BadKey,
    /// The key belongs to another protection domain or queue pair.
    WrongPd,
    /// The range is not inside the region, or wraps around.
    OutOfBounds,
    /// The region or window does not permit this access.
    Permission,
    /// An atomic on an address that is not a multiple of 8.
    Misaligned,
    /// The memory behind the key is no longer mapped.
    Unmapped,
}

/// A bind of a memory window (ibv_bind_mw(3)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MwBind {
    /// The new key of the window: the upper 24 bits name the window, the application chooses the low byte.
    pub r_key: Rkey,
    /// The region that the window is bound to; ignored when `len` is 0.
    pub mr: Lkey,
    /// Address of the first byte, in the addresses of the region.
    pub addr: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// Remote rights, and `ZERO_BASED`.
    pub access: Access,
}

/// A fast registration of a region (REG_MR).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FastReg {
    /// The new key of the region: the upper 24 bits name the region, the application chooses the low byte.
    pub key: Rkey,
    /// Address of the first byte for peers and work requests.
    pub iova: u64,
    /// Rights.
    pub access: Access,
}

/// An 8-byte remote atomic in host order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOp {
    /// Store `swap` if the memory holds `compare`.
    CompareSwap {
        /// The value expected in memory.
        compare: u64,
        /// The value to store in that case.
        swap: u64,
    },
    /// Add modulo 2^64.
    FetchAdd {
        /// The value to add.
        add: u64,
    },
}

/// Memory as the protocol sees it. Every method checks key, domain, rights and bounds; a method that fails
/// reads and writes nothing.
///
/// Writes place bytes in increasing address order, the last byte last: programs poll it (IBA o9-20).
pub trait Memory {
    /// Copies unregistered memory of the application to `dst` (`IBV_SEND_INLINE`).
    ///
    /// # Errors
    /// The address cannot be read.
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault>;

    /// Checks access to a local range.
    ///
    /// # Errors
    /// Key, domain, bounds or rights.
    fn check_local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault>;

    /// Copies local memory to `dst`.
    ///
    /// # Errors
    /// Key, domain or bounds.
    fn read_local(&self, pd: PdId, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault>;

    /// Copies `src` to local memory; needs `LOCAL_WRITE`.
    ///
    /// # Errors
    /// Key, domain, bounds or rights.
    fn write_local(&self, pd: PdId, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault>;

    /// Checks access to a range that the peer named.
    ///
    /// # Errors
    /// Key, domain, bounds or rights.
    fn check_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault>;

    /// Checks access to a key that the peer named, for any range.
    ///
    /// # Errors
    /// Key, domain or rights. The default permits nothing.
    fn check_remote_key(&self, pd: PdId, qpn: Qpn, rkey: Rkey, access: Access) -> Result<(), AccessFault> {
        let _nothing = (pd, qpn, rkey, access);
        Err(AccessFault::Permission)
    }

    /// Copies memory that the peer named to `dst`; needs `REMOTE_READ`.
    ///
    /// # Errors
    /// Key, domain, bounds or rights.
    fn read_remote(&self, pd: PdId, qpn: Qpn, rkey: Rkey, va: u64, dst: &mut [u8])
    -> Result<(), AccessFault>;

    /// Copies `src` to memory that the peer named; needs `REMOTE_WRITE`.
    ///
    /// # Errors
    /// Key, domain, bounds or rights.
    fn write_remote(&self, pd: PdId, qpn: Qpn, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault>;

    /// A WRITE of the peer begins, or a READ: later calls of [`write_remote`](Self::write_remote) or
    /// [`read_remote`](Self::read_remote) for this queue pair belong to it. A WRITE is not checked yet.
    /// Only an implementation that places bytes late, or watches memory, needs it.
    #[inline]
    fn message_begins(&self, pd: PdId, qpn: Qpn, rkey: Rkey, va: u64, len: u64, access: Access) {
        let _not_watched = (pd, qpn, rkey, va, len, access);
    }

    /// Executes an atomic on memory that the peer named and returns the original value; needs
    /// `REMOTE_ATOMIC`.
    ///
    /// # Errors
    /// Key, domain, bounds, rights or alignment.
    fn atomic_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessFault>;

    /// Invalidates a key (LOCAL_INV, SEND with Invalidate).
    ///
    /// # Errors
    /// This queue pair may not invalidate the key.
    fn invalidate(&self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<(), AccessFault>;

    /// Binds a memory window for this queue pair.
    ///
    /// # Errors
    /// The window or the region does not permit the bind. The default has no windows.
    fn bind(&self, pd: PdId, qpn: Qpn, bind: &MwBind) -> Result<(), AccessFault> {
        let _none = (pd, qpn, bind);
        Err(AccessFault::BadKey)
    }

    /// Makes a fast-registered region valid.
    ///
    /// # Errors
    /// The region is valid already, or not made for fast registration. The default has none.
    fn register_fast(&self, pd: PdId, reg: &FastReg) -> Result<(), AccessFault> {
        let _none = (pd, reg);
        Err(AccessFault::BadKey)
    }
}
