//! Forwards packets by the kernel's routing tables, without its network stack.

use super::emit::{Emit, eth, net16};
use super::frame;
use crate::helper::Helper;
use crate::insn::{Cond, Reg, Size};
use crate::map::MapRef;
use crate::xdp::{XdpAction, XdpMd};

/// Name of the map of outgoing interfaces. Key: interface index; value: interface index (and program).
pub const PORTS: &str = "ports";

// `struct bpf_fib_lookup`, offsets.
const FIB_LEN: i32 = 64;
const FAMILY: i16 = 0;
const L4_PROTOCOL: i16 = 1;
const TOT_LEN: i16 = 6;
const IFINDEX: i16 = 8;
const TOS_OR_FLOWINFO: i16 = 12;
const SRC: i16 = 16;
const DST: i16 = 32;
const SMAC: i16 = 52;
const DMAC: i16 = 58;

const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

/// Emits the block. R7 is the packet; the verdict is left in R0.
pub(super) fn emit(emit: &mut Emit, ports: MapRef) {
    emit.load_packet();
    let pass = emit.pass();
    let asm = &mut emit.asm;
    let (ipv4, known) = (asm.label(), asm.label());
    for word in (0..FIB_LEN as i16).step_by(8) {
        asm.store(Size::Dw, Reg::R10, frame::FIB + word, 0);
    }
    asm.need(Reg::R2, Reg::R7, eth::LEN, Reg::R8, pass);
    asm.load(Size::H, Reg::R1, Reg::R7, eth::TYPE);
    asm.branch(Cond::Eq, Reg::R1, net16(eth::IPV4), ipv4).branch(Cond::Ne, Reg::R1, net16(eth::IPV6), pass);

    asm.need(Reg::R2, Reg::R7, eth::LEN + 40, Reg::R8, pass);
    asm.load(Size::B, Reg::R1, Reg::R7, 21).branch(Cond::Le, Reg::R1, 1, pass);
    asm.store(Size::B, Reg::R10, frame::FIB + FAMILY, AF_INET6);
    copy(emit, Size::B, 20, L4_PROTOCOL);
    emit.asm.load(Size::H, Reg::R1, Reg::R7, 18).to_be(Size::H, Reg::R1).add(Reg::R1, 40);
    emit.asm.store(Size::H, Reg::R10, frame::FIB + TOT_LEN, Reg::R1);
    emit.asm.load(Size::W, Reg::R1, Reg::R7, 14).and(Reg::R1, 0x0fff_ffff_i32.swap_bytes());
    emit.asm.store(Size::W, Reg::R10, frame::FIB + TOS_OR_FLOWINFO, Reg::R1);
    for word in (0..16).step_by(4) {
        copy(emit, Size::W, 22 + word, SRC + word);
        copy(emit, Size::W, 38 + word, DST + word);
    }
    route(emit, ports);
    emit.asm.load(Size::B, Reg::R1, Reg::R7, 21).add(Reg::R1, -1).store(Size::B, Reg::R7, 21, Reg::R1);
    emit.asm.jump(known);

    emit.asm.bind(ipv4).need(Reg::R2, Reg::R7, eth::LEN + 20, Reg::R8, pass);
    emit.asm.load(Size::B, Reg::R1, Reg::R7, 14).branch(Cond::Ne, Reg::R1, 0x45, pass);
    emit.asm.load(Size::B, Reg::R1, Reg::R7, 22).branch(Cond::Le, Reg::R1, 1, pass);
    emit.asm.store(Size::B, Reg::R10, frame::FIB + FAMILY, AF_INET);
    copy(emit, Size::B, 23, L4_PROTOCOL);
    copy(emit, Size::B, 15, TOS_OR_FLOWINFO);
    emit.asm.load(Size::H, Reg::R1, Reg::R7, 16).to_be(Size::H, Reg::R1);
    emit.asm.store(Size::H, Reg::R10, frame::FIB + TOT_LEN, Reg::R1);
    copy(emit, Size::W, 26, SRC);
    copy(emit, Size::W, 30, DST);
    route(emit, ports);
    decrement_ttl(emit);

    emit.asm.bind(known);
    for half in (0..6).step_by(2) {
        for (from, to) in [(DMAC, 0), (SMAC, 6)] {
            emit.asm.load(Size::H, Reg::R1, Reg::R10, frame::FIB + from + half);
            emit.asm.store(Size::H, Reg::R7, to + half, Reg::R1);
        }
    }
    emit.asm.load(Size::W, Reg::R2, Reg::R10, frame::FIB + IFINDEX).load_map(Reg::R1, ports);
    emit.asm.mov(Reg::R3, XdpAction::Pass.number() as i32).call(Helper::RedirectMap);
}

/// Emits code that copies a field of the packet into the parameters of `bpf_fib_lookup`.
fn copy(emit: &mut Emit, size: Size, packet: i16, fib: i16) {
    emit.asm.load(size, Reg::R1, Reg::R7, packet).store(size, Reg::R10, frame::FIB + fib, Reg::R1);
}

/// Emits the route lookup and the check that the outgoing interface is in `ports`. Only after that is the
/// packet changed.
fn route(emit: &mut Emit, ports: MapRef) {
    let pass = emit.pass();
    let asm = &mut emit.asm;
    asm.load_ctx(Reg::R1, Reg::R6, XdpMd::IngressIfindex);
    asm.store(Size::W, Reg::R10, frame::FIB + IFINDEX, Reg::R1);
    asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(frame::FIB));
    asm.mov(Reg::R3, FIB_LEN).mov(Reg::R4, 0).call(Helper::FibLookup).branch(Cond::Ne, Reg::R0, 0, pass);
    emit.lookup(ports, frame::FIB + IFINDEX);
    emit.if_null(pass);
}

/// Emits code that decrements the TTL and updates the checksum of the IPv4 header (RFC 1624). The word with
/// the TTL decreases by 0x100, so the checksum increases by it. As loaded by a little-endian program that is
/// 1, plus the carry.
fn decrement_ttl(emit: &mut Emit) {
    let asm = &mut emit.asm;
    let no_carry = asm.label();
    asm.load(Size::H, Reg::R1, Reg::R7, 24).add(Reg::R1, 1).branch(Cond::Lt, Reg::R1, 0xffff, no_carry);
    asm.add(Reg::R1, 1).bind(no_carry).store(Size::H, Reg::R7, 24, Reg::R1);
    asm.load(Size::B, Reg::R1, Reg::R7, 22).add(Reg::R1, -1).store(Size::B, Reg::R7, 22, Reg::R1);
}
