//! The one seam between the protocol and memory: reading, writing and atomics by key and address.
//! The device implements it with raw pointers, tests with a vector; that is why this crate needs no unsafe code.

use bitflags::bitflags;
use wire::{Lkey, Qpn, Rkey};

/// Names a protection domain. Keys and queue pairs of different domains do not work together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub struct PdId(pub u32);

bitflags! {
    /// What a key or a queue pair permits; the bits are those of `ibv_access_flags`.
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
        /// The peer may FLUSH to where everybody sees it.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may FLUSH to where a power failure leaves it.
        const FLUSH_PERSISTENT = 1 << 9;
    }
}

/// Why an access was refused. A refused access touched nothing.
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
    /// The memory behind the key is gone.
    Unmapped,
}

/// What a memory window shall grant (ibv_bind_mw(3)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MwBind {
    /// The window's key from now on: its upper 24 bits name the window, the low byte is free.
    pub r_key: Rkey,
    /// The region it is bound to; not looked at when `len` is 0.
    pub mr: Lkey,
    /// First byte, as the region's users address it.
    pub addr: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// What peers may do: remote rights, and `ZERO_BASED`.
    pub access: Access,
}

/// How a fast-registered region shall be reached (REG_MR).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FastReg {
    /// The region's key from now on: its upper 24 bits name the region, the low byte is free.
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
        /// The value to store then.
        swap: u64,
    },
    /// Add modulo 2^64.
    FetchAdd {
        /// The value to add.
        add: u64,
    },
}

/// Memory as the protocol sees it. Every method checks key, domain, rights and bounds; one that fails touched nothing.
///
/// Writes place bytes in increasing address order, the last byte last: programs poll it (IBA o9-20).
pub trait Memory {
    /// Copies unregistered memory of the caller (`IBV_SEND_INLINE`).
    ///
    /// # Errors
    /// The address cannot be read.
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault>;

    /// Checks a local range without touching it.
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

    /// Checks a range that the peer named, without touching it.
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

    /// Checks a key that the peer named, whatever its range.
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

    /// Does an atomic on memory that the peer named and returns the value before it; needs `REMOTE_ATOMIC`.
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
    /// The key is not one that may be invalidated by this queue pair.
    fn invalidate(&self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<(), AccessFault>;

    /// Binds a memory window for the queue pair that asks.
    ///
    /// # Errors
    /// Window or region are not what the bind needs. The default has no windows.
    fn bind(&self, pd: PdId, qpn: Qpn, bind: &MwBind) -> Result<(), AccessFault> {
        let _none = (pd, qpn, bind);
        Err(AccessFault::BadKey)
    }

    /// Makes a fast-registered region valid.
    ///
    /// # Errors
    /// The region is valid already, or not one of this kind. The default has none.
    fn register_fast(&self, pd: PdId, reg: &FastReg) -> Result<(), AccessFault> {
        let _none = (pd, reg);
        Err(AccessFault::BadKey)
    }
}
