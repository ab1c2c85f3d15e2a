//! Who may send, and how fast: by source address.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::emit::Emit;
use super::{RecipeError, Select, frame};
use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use crate::map::{MapDef, MapKind};

/// Name of the prefix table of [`Access`]. Key: prefix length (32 bits, 0..=128) and 16 address bytes, IPv4 as
/// `::ffff:a.b.c.d`, see [`source_key`]. Value: 32 bits, 0 to drop, anything else to let in.
pub const ACCESS: &str = "access";
/// Name of the table of [`Police`]: 16 address bytes to the time in nanoseconds at which the source has paid for
/// everything it sent.
pub const BUCKETS: &str = "buckets";

/// Lets sources in, or drops them, by the longest prefix in [`ACCESS`] that matches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Access {
    /// Sources that no prefix matches are let in.
    pub default_allow: bool,
    /// Prefixes at most.
    pub entries: u32,
}

/// Lets every source send `bytes_per_s` in the long run and `burst_bytes` at once; what exceeds that is dropped. Bytes
/// are those of the Ethernet frame.
///
/// A virtual scheduler: each source has a time up to which its traffic is paid for, and a packet that would move it
/// more than the burst ahead of the clock is dropped. Two CPUs that charge the same source at the same instant
/// charge it once. The charge of a packet is cut to whole nanoseconds, so above 1 GB/s rates are inexact.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Police {
    /// Rate, 1024 B/s to 1 TB/s.
    pub bytes_per_s: u64,
    /// Depth of the bucket, 1 byte to 1 GiB. A packet longer than this never passes.
    pub burst_bytes: u64,
    /// Sources that are remembered; beyond that the one not heard of for longest begins anew.
    pub entries: u32,
}

/// The 16 bytes that stand for the address in keys.
#[must_use]
pub fn source_key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Access {
    /// Key in [`ACCESS`] for `address`/`prefix_len`; for IPv4 the length is 0..=32, for IPv6 0..=128, more is cut.
    #[must_use]
    pub fn key(address: IpAddr, prefix_len: u8) -> [u8; 20] {
        let prefix_len = match address {
            IpAddr::V4(_) => 96 + prefix_len.min(32),
            IpAddr::V6(_) => prefix_len.min(128),
        };
        let mut key = [0; 20];
        key[..4].copy_from_slice(&u32::from(prefix_len).to_le_bytes());
        key[4..].copy_from_slice(&source_key(address));
        key
    }

    pub(super) fn emit(&self, select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
        select.require_source("the access list")?;
        if self.entries == 0 {
            return Err(RecipeError::Range("the size of the access list"));
        }
        let (drop, allow) = (emit.drop(), emit.asm.label());
        let access = emit.asm.map(MapDef::new(ACCESS, MapKind::LpmTrie, 20, 4, self.entries));
        emit.asm.store(Size::W, Reg::R10, frame::PREFIX_LEN, 128);
        emit.lookup(access, frame::PREFIX_LEN);
        emit.if_null(if self.default_allow { allow } else { drop });
        emit.asm.load(Size::W, Reg::R1, Reg::R0, 0).branch(Cond::Eq, Reg::R1, 0, drop);
        emit.asm.bind(allow);
        Ok(())
    }
}

impl Police {
    /// Fixed point of the price: nanoseconds for 2^20 bytes. With the largest packet (64 KiB) and the lowest rate
    /// the product still fits into 64 bits.
    const SHIFT: i32 = 20;
    /// What [`bytes_per_s`](Police::bytes_per_s) can be.
    pub const RATES: RangeInclusive<u64> = 1024..=1_000_000_000_000;
    /// What [`burst_bytes`](Police::burst_bytes) can be.
    pub const BURSTS: RangeInclusive<u64> = 1..=1 << 30;

    pub(super) fn emit(&self, select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
        select.require_source("policing")?;
        if !Self::RATES.contains(&self.bytes_per_s) {
            return Err(RecipeError::Range("the rate"));
        }
        if !Self::BURSTS.contains(&self.burst_bytes) {
            return Err(RecipeError::Range("the burst"));
        }
        if self.entries == 0 {
            return Err(RecipeError::Range("the number of sources"));
        }
        let price = (1_000_000_000 << Self::SHIFT) / self.bytes_per_s;
        let burst_ns = (u128::from(self.burst_bytes) * u128::from(price)) >> Self::SHIFT;
        let burst_ns = u64::try_from(burst_ns).map_err(|_| RecipeError::Range("the burst"))?;

        let drop = emit.drop();
        let buckets = emit.asm.map(MapDef::new(BUCKETS, MapKind::LruHash, 16, 8, self.entries));
        let asm = &mut emit.asm;
        let (known, ahead, on) = (asm.label(), asm.label(), asm.label());
        // R7: now. R8: price of the packet in nanoseconds.
        asm.call(Helper::KtimeGetNs).mov(Reg::R7, Reg::R0);
        asm.mov(Reg::R1, Reg::R6).call(Helper::XdpGetBuffLen);
        asm.mov(Reg::R8, Reg::R0).load_imm64(Reg::R1, price).alu(AluOp::Mul, Reg::R8, Reg::R1);
        asm.rsh(Reg::R8, Self::SHIFT);
        emit.lookup(buckets, frame::SOURCE);
        let asm = &mut emit.asm;
        asm.branch(Cond::Ne, Reg::R0, 0, known);

        asm.load_imm64(Reg::R1, burst_ns).branch(Cond::Gt, Reg::R8, Reg::R1, drop);
        asm.add(Reg::R8, Reg::R7).store(Size::Dw, Reg::R10, frame::VALUE, Reg::R8);
        asm.load_map(Reg::R1, buckets);
        asm.mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(frame::SOURCE));
        asm.mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(frame::VALUE));
        // If there is no room, the source goes uncharged.
        asm.mov(Reg::R4, 0).call(Helper::MapUpdateElem).jump(on);

        // R2: how far the source would be ahead of the clock.
        asm.bind(known).mov(Reg::R9, Reg::R0).load(Size::Dw, Reg::R0, Reg::R9, 0);
        asm.mov(Reg::R2, Reg::R0).alu(AluOp::Sub, Reg::R2, Reg::R7);
        asm.branch(Cond::SGe, Reg::R2, 0, ahead).mov(Reg::R2, 0);
        asm.bind(ahead).add(Reg::R2, Reg::R8);
        asm.load_imm64(Reg::R1, burst_ns).branch(Cond::Gt, Reg::R2, Reg::R1, drop);
        asm.add(Reg::R2, Reg::R7).atomic(Width::W64, AtomicOp::CmpXchg, Reg::R9, 0, Reg::R2);
        asm.bind(on);
        Ok(())
    }
}
