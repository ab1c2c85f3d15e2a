//! Completes the TCP or UDP checksum of packets that leave by a redirect or go back.
//!
//! A local socket leaves the checksum to the device: the field holds the folded sum of the pseudo header
//! (`CHECKSUM_PARTIAL`). A virtual device passes such packets on with this note beside them. XDP frames
//! cannot hold the note, so the receiver of a redirected packet sees a wrong checksum and drops it. This
//! block recognizes the sum of the pseudo header in the field, and computes the checksum. A complete
//! checksum that happens to be equal stays as it is, because the computation then gives the same number.
//! RFC 1071.
//!
//! The block is for programs in the driver. In the network stack the note stays with the packet, and the
//! device completes the checksum itself.

use super::emit::{Emit, eth, net16};
use crate::asm::{Asm, Function, Label};
use crate::helper::Helper;
use crate::insn::{AluOp, Cond, Operand, Reg, Size};
use crate::xdp::XdpAction;

/// Bytes summed at once.
const CHUNK: i32 = 64;
/// Longest segment: that of a 16 KiB MTU. The verifier follows the loop once for each chunk.
const SEGMENT_MAX: i32 = 16384;
/// Shortest segment: a UDP header.
const SEGMENT_MIN: i32 = 8;
const TCP: i32 = 6;
const UDP: i32 = 17;

// The function's stack frame.
const BYTES: i16 = -64;
/// Ethernet and IP header.
const HEADER: i16 = -128;
const FIELD_AT: i16 = -136;
const PSEUDO: i16 = -144;
const FIELD: i16 = -152;

/// Emits the call: the verdict is in R0 and stays there, R6 is the context.
pub(super) fn call(emit: &mut Emit) -> Function {
    let function = emit.asm.declare("complete", 1);
    let (complete, other) = (emit.asm.label(), emit.asm.label());
    emit.asm.mov(Reg::R7, Reg::R0);
    emit.asm.branch(Cond::Eq, Reg::R0, XdpAction::Redirect.number() as i32, complete);
    emit.asm.branch(Cond::Ne, Reg::R0, XdpAction::Tx.number() as i32, other);
    emit.asm.bind(complete).mov(Reg::R1, Reg::R6).call_function(function);
    emit.asm.bind(other).mov(Reg::R0, Reg::R7);
    function
}

/// Emits the function, behind the exit of the program. R6: context, R7: protocol, then the sum, R8: bytes of
/// the segment that are left, R9: their offset.
pub(super) fn function(asm: &mut Asm, function: Function) {
    let (ipv4, transport, sum, out) = (asm.label(), asm.label(), asm.label(), asm.label());
    asm.function(function).mov(Reg::R6, Reg::R1);
    load(asm, 0, HEADER, eth::LEN + 20, out);
    asm.load(Size::H, Reg::R1, Reg::R10, HEADER + eth::TYPE);
    asm.branch(Cond::Eq, Reg::R1, net16(eth::IPV4), ipv4).branch(Cond::Ne, Reg::R1, net16(eth::IPV6), out);

    load(asm, 0, HEADER, eth::LEN + 40, out);
    asm.load(Size::B, Reg::R7, Reg::R10, HEADER + 20).mov(Reg::R9, eth::LEN + 40);
    asm.load(Size::H, Reg::R8, Reg::R10, HEADER + 18).to_be(Size::H, Reg::R8);
    diff(asm, HEADER + 22, 32, None);
    asm.jump(transport);

    // No fragments: more-fragments and offset are zero.
    asm.bind(ipv4).load(Size::B, Reg::R9, Reg::R10, HEADER + 14);
    asm.branch(Cond::Lt, Reg::R9, 0x45, out).branch(Cond::Gt, Reg::R9, 0x4f, out);
    asm.load(Size::H, Reg::R1, Reg::R10, HEADER + 20).branch(Cond::Set, Reg::R1, net16(0x3fff), out);
    asm.load(Size::B, Reg::R7, Reg::R10, HEADER + 23).and(Reg::R9, 0xf).alu(AluOp::Lsh, Reg::R9, 2);
    asm.load(Size::H, Reg::R8, Reg::R10, HEADER + 16).to_be(Size::H, Reg::R8);
    asm.alu(AluOp::Sub, Reg::R8, Reg::R9).add(Reg::R9, eth::LEN);
    diff(asm, HEADER + 26, 8, None);

    // R0: sum of the addresses; protocol and length follow, in network order.
    asm.bind(transport).branch(Cond::Gt, Reg::R8, SEGMENT_MAX, out);
    asm.branch(Cond::Lt, Reg::R8, SEGMENT_MIN, out);
    asm.alu32(AluOp::Mov, Reg::R0, Reg::R0).mov(Reg::R1, Reg::R7).alu(AluOp::Lsh, Reg::R1, 8);
    asm.add(Reg::R0, Reg::R1).mov(Reg::R1, Reg::R8).to_be(Size::H, Reg::R1).add(Reg::R0, Reg::R1);
    fold(asm, Reg::R0);
    asm.store(Size::Dw, Reg::R10, PSEUDO, Reg::R0);
    let known = asm.label();
    asm.mov(Reg::R2, 6).branch(Cond::Eq, Reg::R7, UDP, known);
    asm.mov(Reg::R2, 16).branch(Cond::Ne, Reg::R7, TCP, out);
    asm.bind(known).add(Reg::R2, Reg::R9).store(Size::Dw, Reg::R10, FIELD_AT, Reg::R2);
    asm.mov(Reg::R1, Reg::R6).mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(FIELD)).mov(Reg::R4, 2);
    asm.call(Helper::XdpLoadBytes).branch(Cond::Ne, Reg::R0, 0, out);
    asm.load(Size::H, Reg::R1, Reg::R10, FIELD).load(Size::Dw, Reg::R2, Reg::R10, PSEUDO);
    asm.branch(Cond::Ne, Reg::R1, Reg::R2, out);

    // The segment with the sum of the pseudo header in its field.
    let (tail, done) = (asm.label(), asm.label());
    asm.mov(Reg::R7, 0).bind(sum).branch(Cond::Lt, Reg::R8, CHUNK, tail);
    load(asm, Reg::R9, BYTES, CHUNK, out);
    diff(asm, BYTES, CHUNK, Some(Reg::R7));
    asm.mov(Reg::R7, Reg::R0).add(Reg::R9, CHUNK).add(Reg::R8, -CHUNK).jump(sum);
    asm.bind(tail);
    for at in (0..CHUNK as i16).step_by(8) {
        asm.store(Size::Dw, Reg::R10, BYTES + at, 0);
    }
    asm.branch(Cond::Eq, Reg::R8, 0, done);
    load(asm, Reg::R9, BYTES, Reg::R8, out);
    diff(asm, BYTES, CHUNK, Some(Reg::R7));
    asm.mov(Reg::R7, Reg::R0).bind(done).alu32(AluOp::Mov, Reg::R7, Reg::R7);
    fold(asm, Reg::R7);
    let stored = asm.label();
    // A UDP checksum of 0 means none, so 0 is sent as its other form.
    asm.alu(AluOp::Xor, Reg::R7, 0xffff).branch(Cond::Ne, Reg::R7, 0, stored).mov(Reg::R7, 0xffff);
    asm.bind(stored).store(Size::H, Reg::R10, FIELD, Reg::R7);
    asm.mov(Reg::R1, Reg::R6).load(Size::Dw, Reg::R2, Reg::R10, FIELD_AT);
    asm.mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(FIELD)).mov(Reg::R4, 2).call(Helper::XdpStoreBytes);
    asm.bind(out).mov(Reg::R0, 0).exit();
}

/// `bpf_xdp_load_bytes(ctx, from, fp + to, len)`; a shorter packet jumps to `out`.
fn load(asm: &mut Asm, from: impl Into<Operand>, to: i16, len: impl Into<Operand>, out: Label) {
    asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, from).mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(to));
    asm.mov(Reg::R4, len).call(Helper::XdpLoadBytes).branch(Cond::Ne, Reg::R0, 0, out);
}

/// `R0 = bpf_csum_diff(0, 0, fp + at, len, seed)`
fn diff(asm: &mut Asm, at: i16, len: i32, seed: Option<Reg>) {
    asm.mov(Reg::R1, 0).mov(Reg::R2, 0).mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(at)).mov(Reg::R4, len);
    asm.mov(Reg::R5, seed.map_or(Operand::Imm(0), Operand::Reg));
    asm.call(Helper::CsumDiff);
}

/// Folds a sum of at most 34 bits to 16 bits.
fn fold(asm: &mut Asm, sum: Reg) {
    for _ in 0..3 {
        asm.mov(Reg::R1, sum).rsh(Reg::R1, 16).and(sum, 0xffff).add(sum, Reg::R1);
    }
}

#[cfg(test)]
mod tests {
    use crate::vm::{Env, Image, Machine, XdpBuff};
    use crate::{Action, ProgramKind, Recipe, Select, Stage, XdpAction};

    struct Host;
    impl Env for Host {
        fn ktime_ns(&mut self) -> u64 {
            0
        }
        fn random(&mut self) -> u32 {
            0
        }
    }

    /// One's complement sum of big-endian words.
    fn sum(bytes: &[u8]) -> u32 {
        let mut sum: u32 =
            bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }

    /// A packet with the sum of the pseudo header in its field; where the field is, and the pseudo header.
    fn partial(is_v6: bool, protocol: u8, payload: usize) -> (Vec<u8>, usize, Vec<u8>) {
        let header = if protocol == 6 { 20 } else { 8 };
        let segment: Vec<u8> = (0..header + payload).map(|at| (at * 7 + 3) as u8).collect();
        let len = (segment.len() as u16).to_be_bytes();
        let mut packet = vec![2; 12];
        let pseudo = if is_v6 {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, len[0], len[1], protocol, 64]);
            packet.extend((0..32).map(|at| at + 1));
            [&packet[22..54], &[0, 0, len[0], len[1], 0, 0, 0, protocol]].concat()
        } else {
            let total = (20 + segment.len() as u16).to_be_bytes();
            packet.extend([8, 0, 0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet.extend([10, 0, 0, 1, 10, 9, 8, 7]);
            [&packet[26..34], &[0, protocol, len[0], len[1]]].concat()
        };
        let field = packet.len() + if protocol == 6 { 16 } else { 6 };
        packet.extend(segment);
        packet[field..field + 2].copy_from_slice(&(sum(&pseudo) as u16).to_be_bytes());
        (packet, field, pseudo)
    }

    fn run(recipe: &Recipe, packet: &[u8]) -> (XdpAction, Vec<u8>) {
        let program = recipe.program("complete", ProgramKind::Xdp).unwrap();
        let maps = program.maps.iter().map(|def| crate::Map::new(def, 1).unwrap()).collect();
        let image = Image::new(&program, maps).unwrap();
        let mut buffer = packet.to_vec();
        let mut buff = XdpBuff::new(&mut buffer, 0..packet.len()).unwrap();
        let outcome = Machine::new(0).run(&image, &mut buff, &mut Host);
        assert_eq!(outcome.fault, None, "{}", program.listing());
        (outcome.action(), buffer)
    }

    fn recipe(action: XdpAction) -> Recipe {
        let stages = vec![Stage::Checksum];
        Recipe { select: Select::All, stages, action: Action::Verdict(action), counters: true, frags: true }
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        for is_v6 in [false, true] {
            for protocol in [6, 17] {
                for payload in [0, 1, 2, 55, 56, 57, 63, 64, 65, 700, 1460] {
                    let (packet, field, pseudo) = partial(is_v6, protocol, payload);
                    let (action, after) = run(&recipe(XdpAction::Tx), &packet);
                    let start = if is_v6 { 54 } else { 34 };
                    assert_eq!(action, XdpAction::Tx);
                    assert_eq!(
                        sum(&[&pseudo[..], &after[start..]].concat()),
                        0xffff,
                        "{is_v6} {protocol} {payload}"
                    );
                    assert!(after[..field] == packet[..field] && after[field + 2..] == packet[field + 2..]);
                    // Completing a complete checksum changes nothing.
                    assert_eq!(run(&recipe(XdpAction::Tx), &after).1, after);
                }
            }
        }
    }

    #[test]
    fn other_packets_stay_as_they_are() {
        let (packet, field, _) = partial(false, 17, 100);
        assert_eq!(run(&recipe(XdpAction::Pass), &packet).1, packet, "the stack completes it");
        let changed = |at: usize, byte: u8| {
            let mut packet = packet.clone();
            packet[at] = byte;
            packet
        };
        let without = [&packet[..field], &[0, 0], &packet[field + 2..]].concat();
        let others = [
            without,
            changed(field, packet[field] ^ 1),
            changed(12, 0x81),
            changed(14, 0x44),
            changed(20, 0x20),
            changed(23, 132),
            changed(16, 0xff),
            changed(17, 27),
            packet[..field].to_vec(),
            packet[..20].to_vec(),
        ];
        for other in others {
            assert_eq!(run(&recipe(XdpAction::Tx), &other).1, other);
        }
    }
}
