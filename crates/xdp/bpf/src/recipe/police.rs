//! Access and rate limits by source address.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::emit::Emit;
use super::{RecipeError, Select, frame, in_range};
use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use crate::map::{MapDef, MapKind};

/// Name of the prefix table of [`Access`]. Key: prefix length (32 bits, 0..=128) and 16 address bytes, IPv4
/// as `::ffff:a.b.c.d`, see [`source_key`]. Value: 32 bits, 0 to drop, otherwise admit.
pub const ACCESS: &str = "access";
/// Name of the table of [`Police`]. Key: 16 address bytes. Value: the time in nanoseconds up to which the
/// source has used its rate.
pub const BUCKETS: &str = "buckets";

/// Admits or drops sources by the longest matching prefix in [`ACCESS`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Access {
    /// Whether to admit sources that no prefix matches.
    pub default_allow: bool,
    /// Maximum number of prefixes.
    pub entries: u32,
}

/// Limits every source to `bytes_per_s` on average and `burst_bytes` at once, and drops the excess. Bytes are
/// those of the Ethernet frame.
///
/// This is a virtual scheduler: each source has a time up to which it has used its rate. A packet is dropped
/// if it would move that time further ahead of the clock than the burst allows. If two CPUs charge the same
/// source at the same time, one charge is lost. The charge of a packet is cut to whole nanoseconds, so rates
/// above 1 GB/s are inexact.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Police {
    /// Rate in bytes per second, 1024 to 10^12.
    pub bytes_per_s: u64,
    /// Burst in bytes, 1 to 2^30. A longer packet never passes.
    pub burst_bytes: u64,
    /// Number of sources to remember. If there are more, the least recently seen source starts with a full
    /// burst again.
    pub entries: u32,
}

/// Returns the 16 bytes of an address in map keys; IPv4 is mapped to `::ffff:a.b.c.d`.
#[must_use]
pub fn source_key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Access {
    /// Returns the key in [`ACCESS`] for `address`/`prefix_len`. The length is cut to 32 for IPv4 and 128 for
    /// IPv6.
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
        in_range(self.entries > 0, "the size of the access list")?;
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
    /// Fixed point of the cost: nanoseconds per 2^20 bytes. The product of the largest packet (64 KiB) and
    /// the cost at the lowest rate fits into 64 bits.
    const SHIFT: i32 = 20;
    /// Valid values of [`bytes_per_s`](Police::bytes_per_s).
    pub const RATES: RangeInclusive<u64> = 1024..=1_000_000_000_000;
    /// Valid values of [`burst_bytes`](Police::burst_bytes).
    pub const BURSTS: RangeInclusive<u64> = 1..=1 << 30;

    pub(super) fn emit(&self, select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
        select.require_source("policing")?;
        in_range(Self::RATES.contains(&self.bytes_per_s), "the rate")?;
        in_range(Self::BURSTS.contains(&self.burst_bytes), "the burst")?;
        in_range(self.entries > 0, "the number of sources")?;
        let price = (1_000_000_000 << Self::SHIFT) / self.bytes_per_s;
        let burst_ns = (u128::from(self.burst_bytes) * u128::from(price)) >> Self::SHIFT;
        let burst_ns = u64::try_from(burst_ns).map_err(|_| RecipeError::Range("the burst"))?;

        let drop = emit.drop();
        let buckets = emit.asm.map(MapDef::new(BUCKETS, MapKind::LruHash, 16, 8, self.entries));
        let asm = &mut emit.asm;
        let (known, ahead, on) = (asm.label(), asm.label(), asm.label());
        // R7: current time. R8: cost of the packet in nanoseconds.
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
        // If the table is full, the source is not charged.
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
