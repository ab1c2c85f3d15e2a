//! Memory that records permissions. Besides the usual checks it asserts that the queue pair accesses memory
//! only where a work request or a packet gives it a reason.
//!
//! Local memory: every access lies in an element of a work request that is posted and not complete. Remote
//! memory: a WRITE lies in the range of a received WRITE request, happens while a packet is handled, and only
//! if the queue pair permits it; a READ happens while its response is made; an atomic accesses the address in
//! its packet.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use transport::{Access, AccessFault, AtomicOp, Memory, PdId, Sge};
use wire::{AtomicEth, Lkey, Qpn, Reth, Rkey};

pub(crate) const PD: PdId = PdId(7);
pub(crate) const QPN: Qpn = Qpn::new(0x12_3456);
pub(crate) const LOCAL_KEY: Lkey = Lkey(0x101);
pub(crate) const LOCAL_BASE: u64 = 0x0001_0000_0000;
pub(crate) const LOCAL_LEN: u64 = 128 * 1024;
/// Length of the guards around the regions in bytes; they must not change.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;

/// A registered range as peers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) key: Rkey,
    pub(crate) base: u64,
    pub(crate) len: u64,
    access: Access,
}

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// One region of each kind: ordinary, read-only, write-only, for atomics, at both ends of the address space,
/// empty.
pub(crate) const REGIONS: [Region; 7] = [
    Region { key: Rkey(0x2001), base: 0x7f12_3456_7000, len: 32 * 1024, access: ALL },
    Region { key: Rkey(0x2102), base: 0x7f12_3456_f000, len: 4096, access: Access::REMOTE_READ },
    Region { key: Rkey(0x2203), base: 0x1001, len: 5000, access: Access::REMOTE_WRITE },
    Region { key: Rkey(0x2304), base: 0x7f00_0000_0008, len: 64, access: Access::REMOTE_ATOMIC },
    Region { key: Rkey(0x2405), base: 0, len: 2048, access: ALL },
    Region { key: Rkey(0x2506), base: u64::MAX - 0x2000, len: 0x2000, access: ALL },
    Region { key: Rkey(0x2607), base: 0x5000, len: 0, access: ALL },
];

/// What the queue pair is doing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doing {
    /// An operation that does not access memory.
    Nothing,
    /// Posts this inline work request.
    Posting,
    /// Handles a packet with these headers.
    Packet { reth: Option<Reth>, atomic: Option<AtomicEth>, invalidate: Option<Rkey> },
    /// Makes a packet.
    Transmit,
}

/// A range of a posted work request.
#[derive(Clone, Copy, Debug)]
struct Grant {
    wr_id: u64,
    addr: u64,
    len: u64,
    /// Whether the queue pair may write it: a receive, a READ, an atomic.
    write: bool,
    send: bool,
    /// Bytes written to it so far.
    written: u64,
}

pub(crate) struct Ledger {
    arena: RefCell<Vec<u8>>,
    places: Vec<Range<usize>>,
    grants: RefCell<Vec<Grant>>,
    inline: RefCell<Vec<(u64, u64)>>,
    writes: RefCell<Vec<Reth>>,
    reads: RefCell<Vec<Reth>>,
    /// Registered regions, as a bit set.
    pub(crate) alive: Cell<u32>,
    pub(crate) doing: Cell<Doing>,
    pub(crate) qp_access: Cell<Access>,
}

/// Returns whether `[addr, addr + len)` lies in `[base, base + size)` without wrapping.
fn inside(addr: u64, len: u64, base: u64, size: u64) -> bool {
    addr >= base && u128::from(addr) + u128::from(len) <= u128::from(base) + u128::from(size)
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let mut places = Vec::new();
        let mut end = GUARD;
        for len in REGIONS.iter().map(|region| region.len).chain([LOCAL_LEN]) {
            places.push(end..end + len as usize);
            end += len as usize + GUARD;
        }
        let mut arena = vec![GUARD_BYTE; end];
        for place in &places {
            for (i, byte) in arena[place.clone()].iter_mut().enumerate() {
                *byte = i as u8;
            }
        }
        Self {
            arena: RefCell::new(arena),
            places,
            grants: RefCell::default(),
            inline: RefCell::default(),
            writes: RefCell::default(),
            reads: RefCell::default(),
            alive: Cell::new(u32::MAX),
            doing: Cell::new(Doing::Nothing),
            qp_access: Cell::new(Access::empty()),
        }
    }

    /// Checks the guards. All other checks happen on each access.
    pub(crate) fn check_guards(&self) {
        let arena = self.arena.borrow();
        let mut at = 0;
        for place in &self.places {
            assert!(arena[at..place.start].iter().all(|byte| *byte == GUARD_BYTE), "guard before {place:?}");
            at = place.end;
        }
        assert!(arena[at..].iter().all(|byte| *byte == GUARD_BYTE), "last guard");
    }

    /// Grants access to the elements of a posted work request until [`Ledger::revoke`].
    pub(crate) fn grant(&self, wr_id: u64, sges: &[Sge], write: bool, send: bool) {
        let mut grants = self.grants.borrow_mut();
        grants.extend(sges.iter().map(|sge| Grant {
            wr_id,
            addr: sge.addr,
            len: sge.length.into(),
            write,
            send,
            written: 0,
        }));
    }

    /// Returns the bytes written to a send work request's memory: the result of a READ or atomic.
    pub(crate) fn fetched(&self, wr_id: u64) -> u64 {
        let own = |grant: &&Grant| grant.send && grant.wr_id == wr_id;
        self.grants.borrow().iter().filter(own).map(|grant| grant.written).sum()
    }

    /// Revokes the grants of a complete work request, and of all earlier ones of that queue.
    pub(crate) fn revoke(&self, wr_id: u64, send: bool) {
        let over = |grant: &Grant| grant.send == send && grant.wr_id <= wr_id;
        self.grants.borrow_mut().retain(|grant| !over(grant));
    }

    pub(crate) fn revoke_all(&self) {
        self.grants.borrow_mut().clear();
    }

    pub(crate) fn post_inline(&self, sges: &[Sge]) {
        self.doing.set(Doing::Posting);
        *self.inline.borrow_mut() = sges.iter().map(|sge| (sge.addr, sge.length.into())).collect();
    }

    /// Prepares for handling a packet. The requests in it stay recorded.
    pub(crate) fn packet(&self, packet: &wire::Packet<'_>) {
        let reth = packet.reth();
        if let Some(reth) = reth {
            let list = if packet.row().operation == wire::Operation::ReadRequest {
                &self.reads
            } else {
                &self.writes
            };
            list.borrow_mut().push(reth);
        }
        self.doing.set(Doing::Packet { reth, atomic: packet.atomic_eth(), invalidate: packet.ieth() });
    }

    fn local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<Range<usize>, AccessFault> {
        assert_eq!(pd, PD);
        let given = |grant: &Grant| inside(addr, len, grant.addr, grant.len) && grant.write == write;
        assert!(
            self.grants.borrow().iter().any(given),
            "local {} of {len} bytes at {addr:#x}, outside all work requests",
            if write { "write" } else { "read" },
        );
        if lkey != LOCAL_KEY {
            return Err(AccessFault::BadKey);
        }
        self.place(REGIONS.len(), LOCAL_BASE, LOCAL_LEN, addr, len)
    }

    fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<Range<usize>, AccessFault> {
        assert_eq!((pd, qpn), (PD, QPN));
        assert!(self.qp_access.get().contains(need), "the queue pair does not permit {need:?}");
        let found = REGIONS.iter().position(|region| region.key == rkey).ok_or(AccessFault::BadKey)?;
        if self.alive.get() >> found & 1 == 0 {
            return Err(AccessFault::BadKey);
        }
        let region = &REGIONS[found];
        if !region.access.contains(need) {
            return Err(AccessFault::Permission);
        }
        self.place(found, region.base, region.len, va, len)
    }

    fn place(
        &self,
        index: usize,
        base: u64,
        size: u64,
        addr: u64,
        len: u64,
    ) -> Result<Range<usize>, AccessFault> {
        if !inside(addr, len, base, size) {
            return Err(AccessFault::OutOfBounds);
        }
        let start = self.places[index].start + (addr - base) as usize;
        Ok(start..start + len as usize)
    }

    fn asked(list: &RefCell<Vec<Reth>>, rkey: Rkey, va: u64, len: u64) -> bool {
        let covers = |reth: &Reth| reth.r_key == rkey && inside(va, len, reth.va, reth.dma_len.into());
        list.borrow().iter().any(covers)
    }
}

impl Memory for Ledger {
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        assert!(matches!(self.doing.get(), Doing::Posting), "inline data is read outside of posting");
        let named = |(at, len): &(u64, u64)| *at == addr && *len == dst.len() as u64;
        assert!(self.inline.borrow().iter().any(named));
        let place = self.place(REGIONS.len(), LOCAL_BASE, LOCAL_LEN, addr, dst.len() as u64)?;
        dst.copy_from_slice(&self.arena.borrow()[place]);
        Ok(())
    }

    fn check_local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        self.local(pd, lkey, addr, len, access.contains(Access::LOCAL_WRITE)).map(|_| ())
    }

    fn read_local(&self, pd: PdId, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        assert!(matches!(self.doing.get(), Doing::Transmit));
        let place = self.local(pd, lkey, addr, dst.len() as u64, false)?;
        dst.copy_from_slice(&self.arena.borrow()[place]);
        Ok(())
    }

    fn write_local(&self, pd: PdId, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        assert!(matches!(self.doing.get(), Doing::Packet { .. }));
        let len = src.len() as u64;
        let place = self.local(pd, lkey, addr, len, true)?;
        // Overlapping elements all count.
        let meant = |grant: &&mut Grant| grant.write && inside(addr, len, grant.addr, grant.len);
        self.grants.borrow_mut().iter_mut().filter(meant).for_each(|grant| grant.written += len);
        self.arena.borrow_mut()[place].copy_from_slice(src);
        Ok(())
    }

    fn check_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        let Doing::Packet { reth: Some(reth), .. } = self.doing.get() else {
            panic!("remote access without a packet that names a range")
        };
        assert_eq!((reth.r_key, reth.va, u64::from(reth.dma_len)), (rkey, va, len));
        // A duplicate READ is checked although the queue pair may have lost its permission since.
        let qp = self.qp_access.get();
        self.qp_access.set(qp | access);
        let found = self.remote(pd, qpn, rkey, va, len, access);
        self.qp_access.set(qp);
        found.map(|_| ())
    }

    fn read_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessFault> {
        assert!(matches!(self.doing.get(), Doing::Transmit));
        let len = dst.len() as u64;
        assert!(
            Self::asked(&self.reads, rkey, va, len),
            "READ of {len} bytes at {va:#x}, which no request named"
        );
        let qp = self.qp_access.replace(ALL);
        let place = self.remote(pd, qpn, rkey, va, len, Access::REMOTE_READ);
        self.qp_access.set(qp);
        dst.copy_from_slice(&self.arena.borrow()[place?]);
        Ok(())
    }

    fn write_remote(&self, pd: PdId, qpn: Qpn, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
        assert!(matches!(self.doing.get(), Doing::Packet { .. }));
        let len = src.len() as u64;
        assert!(
            Self::asked(&self.writes, rkey, va, len),
            "WRITE of {len} bytes at {va:#x}, which no request named"
        );
        let place = self.remote(pd, qpn, rkey, va, len, Access::REMOTE_WRITE)?;
        self.arena.borrow_mut()[place].copy_from_slice(src);
        Ok(())
    }

    fn atomic_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessFault> {
        let Doing::Packet { atomic: Some(eth), .. } = self.doing.get() else {
            panic!("atomic without a packet that requests it")
        };
        assert_eq!((eth.r_key, eth.va), (rkey, va));
        assert!(va.is_multiple_of(8));
        let place = self.remote(pd, qpn, rkey, va, 8, Access::REMOTE_ATOMIC)?;
        let bytes = &mut self.arena.borrow_mut()[place];
        let original = u64::from_ne_bytes((&*bytes).try_into().expect("eight bytes"));
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        };
        bytes.copy_from_slice(&new.to_ne_bytes());
        Ok(original)
    }

    fn invalidate(&self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<(), AccessFault> {
        assert_eq!((pd, qpn), (PD, QPN));
        match self.doing.get() {
            Doing::Packet { invalidate, .. } => assert_eq!(invalidate, Some(rkey)),
            Doing::Transmit => {}
            doing => panic!("invalidate while {doing:?}"),
        }
        let found = REGIONS.iter().position(|region| region.key == rkey).ok_or(AccessFault::BadKey)?;
        let alive = self.alive.get();
        self.alive.set(alive & !(1 << found));
        if alive >> found & 1 != 0 { Ok(()) } else { Err(AccessFault::BadKey) }
    }
}
