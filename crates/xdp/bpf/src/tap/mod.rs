//! A program that copies RoCEv2 packets from the network stack to a reader, in either direction.
//!
//! It runs as a traffic classifier (TCX). There the stack still keeps a sender's burst (GSO), or already a
//! receiver's GRO batch, in one buffer. The program copies the headers once and the front of each packet. The
//! stack keeps its large buffers and the reader gets single packets. Every packet passes, also if it could
//! not be copied.
//!
//! Conditions (`choose`) reduce the copying: a buffer is copied if one of its packets is admitted, and the
//! reader applies the conditions again to each packet.

mod choose;
mod header;

pub use choose::{TAP_QPS, TapConditions, TapOpcode};
pub use header::TapHeader;

use std::net::IpAddr;

use crate::asm::{Asm, AsmError, Label};
use crate::helper::Helper;
use crate::hints::{self, Hints};
use crate::insn::{AluOp, Cond, Reg, Size};
use crate::map::{MapDef, MapRef};
use crate::program::{Program, ProgramKind};

/// Name of the ring buffer. A record is a [`TapHeader`] and the bytes that it describes.
pub const TAP: &str = "tap";
/// Name of the per-CPU array with one entry of [`TAP_STATE_LEN`] bytes, four 64-bit numbers: wanted packets
/// that were copied, wanted packets that found the ring full, packets counted for sampling, and wanted
/// packets of the current buffer.
pub const TAP_STATE: &str = "tap_state";
/// Length of an entry of [`TAP_STATE`] in bytes.
pub const TAP_STATE_LEN: usize = 32;

/// Byte offsets of the numbers in an entry.
mod state {
    pub(super) const COPIED: i16 = 0;
    pub(super) const LOST: i16 = 8;
    pub(super) const COUNTED: i16 = 16;
    pub(super) const WANTED: i16 = 24;
}

/// Packets that a reader wants to see.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tap {
    /// Bytes copied of each packet from the Ethernet header on, at least [`Tap::SNAP_MIN`].
    pub snap_len: u32,
    /// Copy only packets from or to one of these addresses; all if the list is empty. At most
    /// [`Tap::HOSTS_MAX`].
    pub hosts: Vec<IpAddr>,
    /// Further conditions; all packets if `None`.
    pub filter: Option<TapConditions>,
    /// Take the receive time from the [`Hints`](crate::Hints) that an XDP program leaves in front of packets.
    pub hints: bool,
    /// UDP port of RoCE, 4791.
    pub port: u16,
    /// Size of the ring in bytes: a power of two, at least 1 MiB. The program does not wake the reader,
    /// because a wake-up costs the sender of the packet more time than the copy.
    pub ring_len: u32,
}

/// `struct __sk_buff` of linux/bpf.h.
mod skb {
    pub(super) const LEN: i16 = 0;
    pub(super) const PROTOCOL: i16 = 16;
    pub(super) const VLAN_PRESENT: i16 = 20;
    pub(super) const VLAN_TCI: i16 = 24;
    pub(super) const DATA: i16 = 76;
    pub(super) const DATA_META: i16 = 140;
    pub(super) const GSO_SIZE: i16 = 176;
}

/// TCX_NEXT: continue as if the program were not attached.
const NEXT: i32 = -1;
const ETHERNET_LEN: i32 = 14;
const IPV4_LEN: i32 = 20;
const IPV6_LEN: i32 = 40;
const UDP_LEN: i32 = 8;
const PROTOCOL_UDP: i32 = 17;
/// Room for Ethernet, IP without extensions and UDP, rounded up to eight bytes.
const OUTER_ROOM: i32 = 80;
/// Maximum number of packets in one buffer (UDP_MAX_SEGMENTS).
const SEGMENTS_MAX: i32 = 128;
/// Numbers of packets that a record can have; the program takes the smallest that suffices. 64 KiB are 45
/// packets at MTU 1500.
const SEGMENTS: [i32; 3] = [16, 48, SEGMENTS_MAX];
/// If more bytes of each packet are wanted, buffers are copied in one piece.
const STRIDE_MAX: u32 = 256;
/// Length of the longest buffer: 64 KiB of IP packet.
const BUFFER_MAX: i32 = 65_536 + 16;
/// Record sizes for copies in one piece; the program takes the smallest that suffices.
const ROOMS: [i32; 4] = [192, 2048, 10_240, BUFFER_MAX];

// `linux/bpf.h`.
const RINGBUF_NO_WAKEUP: i32 = 1;

/// Stack offsets: headers, the sizes of the buffer, and a map key.
const IP: i16 = -48;
const UDP: i16 = -56;
const BUFFER_LEN: i16 = -64;
const OUTER: i16 = -72;
const SEGMENT: i16 = -80;
const KEY: i16 = -88;
/// Pointer to this CPU's [`state`], if there is a filter.
const STATE: i16 = -96;
/// Number of packets that this CPU had counted before this buffer.
const NUMBER: i16 = -104;

impl Tap {
    /// Smallest `snap_len`, in bytes: room for all headers of a RoCE packet.
    pub const SNAP_MIN: u32 = 96;
    /// `snap_len` to copy every byte of every packet.
    pub const WHOLE: u32 = u32::MAX;
    /// Maximum number of addresses in `hosts`.
    pub const HOSTS_MAX: usize = 16;

    /// Returns the program for one direction. The programs of both directions use the same maps.
    ///
    /// # Errors
    /// [`AsmError`] if the name is no identifier.
    pub fn program(&self, name: &str, outbound: bool) -> Result<Program, AsmError> {
        let mut emit = Emit { asm: Asm::new(name), outbound, tap: self };
        emit.program();
        Ok(Program { kind: ProgramKind::Classifier, ..emit.asm.finish()? })
    }

    /// Returns the number of bytes copied of each packet after the shared headers, or `None` if buffers are
    /// copied in one piece.
    fn stride(&self) -> Option<i32> {
        let behind =
            self.snap_len.max(Self::SNAP_MIN).saturating_sub((ETHERNET_LEN + IPV4_LEN + UDP_LEN) as u32);
        (behind <= STRIDE_MAX).then(|| behind.next_multiple_of(8) as i32)
    }
}

/// A tap under construction. R6 always holds the context; R7 holds the record once it is reserved.
struct Emit<'a> {
    asm: Asm,
    outbound: bool,
    tap: &'a Tap,
}

impl Emit<'_> {
    fn program(&mut self) {
        let ring = self.asm.map(MapDef::ringbuf(TAP, self.tap.ring_len));
        let state = self.asm.map(MapDef::percpu_array(TAP_STATE, TAP_STATE_LEN as u32, 1));
        let (next, submit, lost) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.mov(Reg::R6, Reg::R1);
        self.select(next);
        self.load_sizes();
        self.asm.store(Size::Dw, Reg::R10, NUMBER, 0);
        if let Some(filter) = &self.tap.filter {
            self.choose(filter, state, next);
        }
        if let Some(stride) = self.tap.stride() {
            let single = self.asm.label();
            self.asm.load(Size::Dw, Reg::R9, Reg::R10, SEGMENT).branch(Cond::Eq, Reg::R9, 0, single);
            self.segments(ring, stride, submit, lost);
            self.asm.bind(single);
        }
        self.whole(ring, submit, lost);
        self.submit(state, submit, next);
        self.count(state, lost, state::LOST, next);
        self.asm.bind(next).mov(Reg::R0, NEXT).exit();
    }

    /// Emits code that stores the lengths of the buffer and of its packets on the stack.
    fn load_sizes(&mut self) {
        for (from, to) in [(skb::LEN, BUFFER_LEN), (skb::GSO_SIZE, SEGMENT)] {
            self.asm.load(Size::W, Reg::R1, Reg::R6, from).store(Size::Dw, Reg::R10, to, Reg::R1);
        }
    }

    /// Emits code that copies bytes at a constant offset of the buffer to the stack, or jumps to `fails` if
    /// they are missing.
    fn load_to_stack(&mut self, from: i32, to: i16, len: i32, fails: Label) {
        self.asm.mov(Reg::R2, from);
        self.load_from_r2(to, len, fails);
    }

    /// The same with the offset in R2.
    fn load_from_r2(&mut self, to: i16, len: i32, fails: Label) {
        let asm = &mut self.asm;
        asm.mov(Reg::R1, Reg::R6).mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(to));
        asm.mov(Reg::R4, len).call(Helper::SkbLoadBytes).branch(Cond::Ne, Reg::R0, 0, fails);
    }

    /// Emits code that jumps to `other` unless the packet is a RoCEv2 packet from or to a wanted address. An
    /// address family without a wanted address gets no code, because the kernel rejects unreachable code.
    fn select(&mut self, other: Label) {
        let wants =
            |family: fn(&IpAddr) -> bool| self.tap.hosts.is_empty() || self.tap.hosts.iter().any(family);
        let (wants_v4, wants_v6) = (wants(IpAddr::is_ipv4), wants(IpAddr::is_ipv6));
        let (v6, udp, ours) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.load(Size::W, Reg::R7, Reg::R6, skb::PROTOCOL);
        if wants_v6 {
            self.asm.branch(Cond::Eq, Reg::R7, net16(0x86dd), v6);
        }
        if wants_v4 {
            self.asm.branch(Cond::Ne, Reg::R7, net16(0x0800), other);
            self.load_to_stack(ETHERNET_LEN, IP, IPV4_LEN, other);
            let asm = &mut self.asm;
            asm.load(Size::B, Reg::R1, Reg::R10, IP + 9).branch(Cond::Ne, Reg::R1, PROTOCOL_UDP, other);
            // The reader only decodes headers without options.
            asm.load(Size::B, Reg::R1, Reg::R10, IP).branch(Cond::Ne, Reg::R1, 0x45, other);
            self.addresses(IpAddr::is_ipv4, &[IP + 12, IP + 16], other);
            self.keep_ip(true);
            self.load_to_stack(ETHERNET_LEN + IPV4_LEN, UDP, UDP_LEN, other);
            self.asm.store(Size::Dw, Reg::R10, OUTER, ETHERNET_LEN + IPV4_LEN + UDP_LEN);
        }
        if wants_v6 {
            self.asm.jump(if wants_v4 { udp } else { other }).bind(v6);
            self.load_to_stack(ETHERNET_LEN, IP, IPV6_LEN, other);
            self.asm.load(Size::B, Reg::R1, Reg::R10, IP + 6).branch(Cond::Ne, Reg::R1, PROTOCOL_UDP, other);
            self.addresses(IpAddr::is_ipv6, &[IP + 8, IP + 24], other);
            self.keep_ip(false);
            self.load_to_stack(ETHERNET_LEN + IPV6_LEN, UDP, UDP_LEN, other);
            self.asm.store(Size::Dw, Reg::R10, OUTER, ETHERNET_LEN + IPV6_LEN + UDP_LEN);
        }
        self.asm.bind(udp).load(Size::H, Reg::R1, Reg::R10, UDP + 2);
        self.asm.branch(Cond::Eq, Reg::R1, net16(self.tap.port), ours).jump(other).bind(ours);
    }

    /// Emits code that jumps to `other` unless one of the addresses at `places` is wanted.
    fn addresses(&mut self, family: fn(&IpAddr) -> bool, places: &[i16], other: Label) {
        if self.tap.hosts.is_empty() {
            return;
        }
        let wanted = self.asm.label();
        for host in self.tap.hosts.iter().filter(|host| family(host)).take(Tap::HOSTS_MAX) {
            let bytes = match host {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            for &place in places {
                let differs = self.asm.label();
                for (word, at) in bytes.chunks_exact(4).zip((place..).step_by(4)) {
                    let word = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    self.asm.load(Size::W, Reg::R1, Reg::R10, at).branch32(Cond::Ne, Reg::R1, word, differs);
                }
                self.asm.jump(wanted).bind(differs);
            }
        }
        self.asm.jump(other).bind(wanted);
    }

    /// Emits code that reserves a record with `len` bytes after its header, writes the header and sets R7;
    /// jumps to `lost` if the ring is full.
    fn reserve(&mut self, ring: MapRef, len: i32, stride: i32, lost: Label) {
        let asm = &mut self.asm;
        asm.load_map(Reg::R1, ring).mov(Reg::R2, TapHeader::LEN as i32 + len).mov(Reg::R3, 0);
        asm.call(Helper::RingbufReserve).branch(Cond::Eq, Reg::R0, 0, lost).mov(Reg::R7, Reg::R0);
        asm.call(Helper::KtimeGetNs).store(Size::Dw, Reg::R7, TapHeader::TIME, Reg::R0);
        for (from, to, size) in [
            (BUFFER_LEN, TapHeader::BUFFER_LEN, Size::W),
            (OUTER, TapHeader::OUTER, Size::W),
            (SEGMENT, TapHeader::SEGMENT, Size::W),
            (NUMBER, TapHeader::NUMBER, Size::Dw),
        ] {
            asm.load(Size::Dw, Reg::R1, Reg::R10, from).store(size, Reg::R7, to, Reg::R1);
        }
        asm.store(Size::W, Reg::R7, TapHeader::STRIDE, stride);
        asm.store(Size::W, Reg::R7, TapHeader::OUTBOUND, i32::from(self.outbound));
        asm.store(Size::Dw, Reg::R7, TapHeader::NIC, 0);
        if self.tap.hints && !self.outbound {
            asm.copy_hint_times(Reg::R6, Reg::R7);
        }
        let untagged = asm.label();
        asm.store(Size::W, Reg::R7, TapHeader::VLAN, 0).load(Size::W, Reg::R1, Reg::R6, skb::VLAN_PRESENT);
        asm.branch(Cond::Eq, Reg::R1, 0, untagged).load(Size::W, Reg::R1, Reg::R6, skb::VLAN_TCI);
        asm.store(Size::W, Reg::R7, TapHeader::VLAN, Reg::R1).bind(untagged);
    }

    fn segments(&mut self, ring: MapRef, stride: i32, submit: Label, lost: Label) {
        self.packets();
        self.asm.mov(Reg::R9, Reg::R2);
        for most in SEGMENTS {
            let more = self.asm.label();
            if most < SEGMENTS_MAX {
                self.asm.branch(Cond::Gt, Reg::R9, most, more);
            }
            self.fronts(ring, most, stride, submit, lost);
            self.asm.bind(more);
        }
    }

    /// Emits code that copies the shared headers and the front of each packet, at most `most` packets. Bytes
    /// that cannot be read leave the record as it is; the reader can tell from the lengths what is missing.
    ///
    /// Lengths are compared with 1 instead of 0. Older verifiers (Linux 6.1) do not conclude from "not equal
    /// to 0" that a number is greater, and reject a copy of possibly zero bytes.
    fn fronts(&mut self, ring: MapRef, most: i32, stride: i32, submit: Label, lost: Label) {
        self.reserve(ring, OUTER_ROOM + most * stride, stride, lost);
        let asm = &mut self.asm;
        let at = TapHeader::LEN as i32;
        asm.load(Size::Dw, Reg::R8, Reg::R10, OUTER).mov(Reg::R4, Reg::R8);
        asm.branch(Cond::Gt, Reg::R4, OUTER_ROOM, submit).branch(Cond::Lt, Reg::R4, 1, submit);
        asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, 0).mov(Reg::R3, Reg::R7).add(Reg::R3, at);
        asm.call(Helper::SkbLoadBytes).branch(Cond::Ne, Reg::R0, 0, submit);
        // R8: offset of the packet in the buffer. R9: number of the packet.
        let (again, long) = (asm.label(), asm.label());
        asm.mov(Reg::R9, 0).bind(again);
        asm.load(Size::Dw, Reg::R4, Reg::R10, BUFFER_LEN).branch(Cond::Le, Reg::R4, Reg::R8, submit);
        asm.alu(AluOp::Sub, Reg::R4, Reg::R8).branch(Cond::Le, Reg::R4, stride, long).mov(Reg::R4, stride);
        asm.bind(long).branch(Cond::Lt, Reg::R4, 1, submit);
        asm.mov(Reg::R3, Reg::R9).alu(AluOp::Mul, Reg::R3, stride).add(Reg::R3, Reg::R7);
        asm.add(Reg::R3, at + OUTER_ROOM);
        asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, Reg::R8).call(Helper::SkbLoadBytes);
        asm.load(Size::Dw, Reg::R1, Reg::R10, SEGMENT).add(Reg::R8, Reg::R1).add(Reg::R9, 1);
        asm.branch(Cond::Lt, Reg::R9, most, again).jump(submit);
    }

    /// Emits code that copies the buffer in one piece, cut to the snap length if it holds one packet.
    fn whole(&mut self, ring: MapRef, submit: Label, lost: Label) {
        let snap = self.tap.snap_len.clamp(Tap::SNAP_MIN, BUFFER_MAX as u32) as i32;
        let asm = &mut self.asm;
        let cut = asm.label();
        asm.load(Size::Dw, Reg::R8, Reg::R10, BUFFER_LEN);
        if self.tap.stride().is_none() {
            asm.load(Size::Dw, Reg::R9, Reg::R10, SEGMENT).branch(Cond::Ne, Reg::R9, 0, cut);
        }
        asm.branch(Cond::Le, Reg::R8, snap, cut).mov(Reg::R8, snap).bind(cut);
        // Without a stride the snap length is longer than the headers, and a buffer of several packets is
        // copied whole.
        let longest = if self.tap.stride().is_some() { snap } else { BUFFER_MAX };
        let needed = ROOMS.iter().position(|room| *room >= longest).unwrap_or(ROOMS.len() - 1);
        for room in &ROOMS[..=needed] {
            let more = self.asm.label();
            self.asm.branch(Cond::Gt, Reg::R8, *room, more);
            self.reserve(ring, *room, 0, lost);
            let asm = &mut self.asm;
            asm.mov(Reg::R4, Reg::R8);
            asm.branch(Cond::Lt, Reg::R4, 1, submit).branch(Cond::Gt, Reg::R4, *room, submit);
            asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, 0);
            asm.mov(Reg::R3, Reg::R7).add(Reg::R3, TapHeader::LEN as i32);
            asm.call(Helper::SkbLoadBytes).jump(submit).bind(more);
        }
        // The buffer is longer than any buffer can be.
        self.asm.jump(lost);
    }

    fn submit(&mut self, state: MapRef, submit: Label, next: Label) {
        let asm = &mut self.asm;
        let seen = asm.label();
        asm.bind(submit).mov(Reg::R1, Reg::R7).mov(Reg::R2, RINGBUF_NO_WAKEUP).call(Helper::RingbufSubmit);
        self.count(state, seen, state::COPIED, next);
    }

    /// Emits code at `label` that adds the wanted packets of the buffer to a counter and continues at `next`.
    fn count(&mut self, state: MapRef, label: Label, off: i16, next: Label) {
        self.asm.bind(label);
        if self.tap.filter.is_some() {
            self.asm.load(Size::Dw, Reg::R0, Reg::R10, STATE);
            self.asm.load(Size::Dw, Reg::R2, Reg::R0, state::WANTED);
        } else {
            self.look_up_state(state, next);
            self.packets();
        }
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, off).add(Reg::R1, Reg::R2);
        self.asm.store(Size::Dw, Reg::R0, off, Reg::R1).jump(next);
    }

    /// Emits code that sets R0 to this CPU's numbers.
    fn look_up_state(&mut self, state: MapRef, next: Label) {
        let asm = &mut self.asm;
        asm.store(Size::W, Reg::R10, KEY, 0);
        asm.load_map(Reg::R1, state).mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(KEY));
        asm.call(Helper::MapLookupElem).branch(Cond::Eq, Reg::R0, 0, next);
    }

    /// Emits code that sets R2 to the number of packets in the buffer: (length - headers + segment - 1) /
    /// segment, or one.
    fn packets(&mut self) {
        let asm = &mut self.asm;
        let one = asm.label();
        asm.mov(Reg::R2, 1).load(Size::Dw, Reg::R3, Reg::R10, SEGMENT).branch(Cond::Eq, Reg::R3, 0, one);
        asm.load(Size::Dw, Reg::R2, Reg::R10, BUFFER_LEN).load(Size::Dw, Reg::R1, Reg::R10, OUTER);
        asm.alu(AluOp::Sub, Reg::R2, Reg::R1).add(Reg::R2, Reg::R3).add(Reg::R2, -1);
        asm.alu(AluOp::Div, Reg::R2, Reg::R3).bind(one);
    }
}

impl Asm {
    /// Emits code that takes the times of a packet from the hints in front of it, if there are any. R1 to R4
    /// are clobbered.
    fn copy_hint_times(&mut self, ctx: Reg, record: Reg) {
        let none = self.label();
        self.load(Size::W, Reg::R1, ctx, skb::DATA).load(Size::W, Reg::R2, ctx, skb::DATA_META);
        self.need(Reg::R3, Reg::R2, Hints::LEN as i32, Reg::R1, none);
        self.load(Size::W, Reg::R4, Reg::R2, 0).branch32(Cond::Ne, Reg::R4, hints::MAGIC as i32, none);
        self.load(Size::Dw, Reg::R4, Reg::R2, hints::ARRIVED);
        self.store(Size::Dw, record, TapHeader::TIME, Reg::R4);
        self.store(Size::W, record, TapHeader::OUTBOUND, TapHeader::DRIVER_TIME);
        self.load(Size::H, Reg::R4, Reg::R2, hints::PRESENT).and(Reg::R4, hints::HAS_TIMESTAMP as i32);
        self.branch(Cond::Eq, Reg::R4, 0, none).load(Size::Dw, Reg::R4, Reg::R2, hints::TIMESTAMP);
        self.store(Size::Dw, record, TapHeader::NIC, Reg::R4).bind(none);
    }
}

/// Returns a 16-bit number as a load from the packet gives it: in network order, read by a little-endian
/// program.
const fn net16(value: u16) -> i32 {
    value.swap_bytes() as i32
}
