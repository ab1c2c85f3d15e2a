//! The XDP program of flow rules: it computes the key of each frame as [`Key::of`](super::key::Key::of) does,
//! and compares it with the rules in a map. The first rule that matches redirects the frame to the AF_XDP
//! socket of its receive queue, or drops it. All other frames pass to the network stack.

use bpf::{AluOp, AsmError};
use bpf::{Asm, Cond, Helper, HintKfuncs, Hints, Label, MapDef, Program, Reg, Size, XdpAction, XdpMd};

use super::key::{
    DST_IP, ETHER_TYPE, FLOW_LABEL, HAS_IPV4, HAS_IPV6, HAS_PORTS, HAS_VLAN, HEADERS, KEY_LEN, PROTO, SRC_IP,
    SRC_PORT, TCP, TOS, TTL, UDP, VLAN_TAG,
};
use super::spec::Match;
use super::table::FLOWS_MAX;

/// Name of the program in the kernel.
pub(super) const NAME: &str = "roxie_raw";
/// Names of its maps: an array of rules, and the AF_XDP sockets by receive queue.
pub(super) const RULES: &str = "rules";
pub(super) const SOCKETS: &str = "sockets";

/// A rule in the map: value, mask, action.
pub(super) const RULE_LEN: usize = 2 * KEY_LEN + 8;
/// Actions. A rule of 0 ends the list.
const REDIRECT: u64 = 1;
const DROP: u64 = 2;

/// Returns a rule as the program reads it; the end of the list for `None`.
pub(super) fn encode(rule: Option<(&Match, bool)>) -> [u8; RULE_LEN] {
    let mut bytes = [0; RULE_LEN];
    if let Some((matches, drops)) = rule {
        bytes[..KEY_LEN].copy_from_slice(&matches.value.0);
        bytes[KEY_LEN..2 * KEY_LEN].copy_from_slice(&matches.mask.0);
        bytes[2 * KEY_LEN..].copy_from_slice(&if drops { DROP } else { REDIRECT }.to_ne_bytes());
    }
    bytes
}

/// Stack offsets: the key, the index of the present rule, and the driver's hints.
const KEY: i16 = -(KEY_LEN as i16);
const INDEX: i16 = KEY - 8;
const HINTS: i16 = INDEX - Hints::LEN as i16;
const NO_VERDICT: i32 = XdpAction::Pass.number() as i32;

const fn net16(value: u16) -> i32 {
    value.swap_bytes() as i32
}

/// Emits `key[to] = base[from]` for `len` bytes, which is a multiple of the size.
fn copy(asm: &mut Asm, size: Size, base: Reg, from: i16, to: usize, len: i16) {
    let step = match size {
        Size::B => 1,
        Size::H => 2,
        _ => 4,
    };
    for at in (0..len).step_by(step) {
        asm.load(size, Reg::R1, base, from + at);
        asm.store(size, Reg::R10, KEY + to as i16 + at, Reg::R1);
    }
}

/// Returns the program for at most `queues` receive queues. It asks for these hints, and gives them to the
/// AF_XDP socket in front of the frame: a driver may have taken the VLAN tag out of the frame.
pub(super) fn program(queues: u32, hints: &HintKfuncs) -> Result<Program, AsmError> {
    let mut asm = Asm::new(NAME);
    let rules = asm.map(MapDef::array(RULES, RULE_LEN as u32, FLOWS_MAX as u32));
    let sockets = asm.map(MapDef::xskmap(SOCKETS, queues));
    let (pass, compare) = (asm.label(), asm.label());
    asm.mov(Reg::R6, Reg::R1);
    if !hints.is_empty() {
        asm.read_hints(Reg::R6, HINTS, hints);
    }
    emit_key(&mut asm, hints, pass, compare);
    asm.bind(compare).store(Size::B, Reg::R10, KEY + HEADERS as i16, Reg::R5);

    // R9: index of the rule.
    let (each, next, matched, drop) = (asm.label(), asm.label(), asm.label(), asm.label());
    asm.mov(Reg::R9, 0);
    asm.bind(each).branch(Cond::Ge, Reg::R9, FLOWS_MAX as i32, pass);
    asm.store(Size::W, Reg::R10, INDEX, Reg::R9);
    asm.load_map(Reg::R1, rules).mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(INDEX));
    asm.call(Helper::MapLookupElem).branch(Cond::Eq, Reg::R0, 0, pass);
    asm.load(Size::Dw, Reg::R4, Reg::R0, 2 * KEY_LEN as i16).branch(Cond::Eq, Reg::R4, 0, pass);
    for word in (0..KEY_LEN as i16).step_by(8) {
        asm.load(Size::Dw, Reg::R1, Reg::R10, KEY + word);
        asm.load(Size::Dw, Reg::R2, Reg::R0, KEY_LEN as i16 + word).alu(AluOp::And, Reg::R1, Reg::R2);
        asm.load(Size::Dw, Reg::R2, Reg::R0, word).branch(Cond::Ne, Reg::R1, Reg::R2, next);
    }
    asm.jump(matched);
    asm.bind(next).add(Reg::R9, 1).jump(each);

    asm.bind(matched).branch(Cond::Eq, Reg::R4, DROP as i32, drop);
    if !hints.is_empty() {
        // A frame without its tag would be another frame: the network stack gets it instead.
        let (fails, redirect) = (asm.label(), asm.label());
        asm.push_hints(Reg::R6, HINTS, fails).jump(redirect);
        asm.bind(fails).branch_no_vlan(HINTS, redirect).jump(pass).bind(redirect);
    }
    asm.load_map(Reg::R1, sockets).load_ctx(Reg::R2, Reg::R6, XdpMd::RxQueueIndex);
    asm.mov(Reg::R3, NO_VERDICT).call(Helper::RedirectMap).exit();
    asm.bind(drop).ret(XdpAction::Drop);
    asm.bind(pass).ret(XdpAction::Pass);
    asm.finish()
}

/// Emits the parser. R7 and R8 are the packet and its end, R9 the current header, R5 the headers so far.
fn emit_key(asm: &mut Asm, hints: &HintKfuncs, pass: Label, compare: Label) {
    for word in (0..KEY_LEN as i16).step_by(8) {
        asm.store(Size::Dw, Reg::R10, KEY + word, 0);
    }
    asm.load_ctx(Reg::R7, Reg::R6, XdpMd::Data).load_ctx(Reg::R8, Reg::R6, XdpMd::DataEnd);
    asm.mov(Reg::R5, 0);
    asm.need(Reg::R2, Reg::R7, 14, Reg::R8, pass);
    copy(asm, Size::W, Reg::R7, 0, 0, 12);
    asm.load(Size::H, Reg::R3, Reg::R7, 12).mov(Reg::R9, Reg::R7).add(Reg::R9, 14);

    let (tagged, untagged, cut_tag) = (asm.label(), asm.label(), asm.label());
    if !hints.is_empty() {
        // The first tag of the wire is the driver's; one in the frame is the second.
        let in_frame = asm.label();
        asm.branch_no_vlan(HINTS, in_frame).load_vlan_tci(Reg::R1, HINTS).to_be(Size::H, Reg::R1);
        asm.store(Size::H, Reg::R10, KEY + VLAN_TAG as i16, Reg::R1);
        asm.mov(Reg::R5, i32::from(HAS_VLAN)).jump(untagged).bind(in_frame);
    }
    asm.branch(Cond::Eq, Reg::R3, net16(0x8100), tagged).branch(Cond::Ne, Reg::R3, net16(0x88a8), untagged);
    asm.bind(tagged).need(Reg::R2, Reg::R9, 4, Reg::R8, cut_tag);
    copy(asm, Size::H, Reg::R9, 0, VLAN_TAG, 2);
    asm.load(Size::H, Reg::R3, Reg::R9, 2).mov(Reg::R5, i32::from(HAS_VLAN)).add(Reg::R9, 4);
    asm.bind(untagged).store(Size::H, Reg::R10, KEY + ETHER_TYPE as i16, Reg::R3);

    let (ipv4, ports) = (asm.label(), asm.label());
    asm.branch(Cond::Eq, Reg::R3, net16(0x0800), ipv4).branch(Cond::Ne, Reg::R3, net16(0x86dd), compare);
    emit_ipv6(asm, compare);
    asm.jump(ports);
    asm.bind(ipv4);
    emit_ipv4(asm, compare);

    // R4: the protocol.
    let known = asm.label();
    asm.bind(ports).branch(Cond::Eq, Reg::R4, i32::from(TCP), known);
    asm.branch(Cond::Ne, Reg::R4, i32::from(UDP), compare);
    asm.bind(known).need(Reg::R2, Reg::R9, 4, Reg::R8, compare);
    copy(asm, Size::H, Reg::R9, 0, SRC_PORT, 4);
    asm.alu(AluOp::Or, Reg::R5, i32::from(HAS_PORTS)).jump(compare);
    // The addresses are there, and no type.
    asm.bind(cut_tag).jump(compare);
}

fn emit_ipv6(asm: &mut Asm, compare: Label) {
    asm.need(Reg::R2, Reg::R9, 40, Reg::R8, compare);
    asm.load(Size::B, Reg::R1, Reg::R9, 0).mov(Reg::R3, Reg::R1).rsh(Reg::R1, 4);
    asm.branch(Cond::Ne, Reg::R1, 6, compare);
    copy(asm, Size::W, Reg::R9, 8, SRC_IP, 16);
    copy(asm, Size::W, Reg::R9, 24, DST_IP, 16);
    // The traffic class: the lower half of the first byte and the upper half of the second one.
    asm.alu(AluOp::Lsh, Reg::R3, 4).and(Reg::R3, 0xf0);
    asm.load(Size::B, Reg::R1, Reg::R9, 1).mov(Reg::R2, Reg::R1).rsh(Reg::R1, 4);
    asm.alu(AluOp::Or, Reg::R3, Reg::R1).store(Size::B, Reg::R10, KEY + TOS as i16, Reg::R3);
    asm.and(Reg::R2, 0xf).store(Size::B, Reg::R10, KEY + FLOW_LABEL as i16 + 1, Reg::R2);
    copy(asm, Size::H, Reg::R9, 2, FLOW_LABEL + 2, 2);
    copy(asm, Size::B, Reg::R9, 7, TTL, 1);
    asm.load(Size::B, Reg::R4, Reg::R9, 6).store(Size::B, Reg::R10, KEY + PROTO as i16, Reg::R4);
    asm.alu(AluOp::Or, Reg::R5, i32::from(HAS_IPV6)).add(Reg::R9, 40);
}

fn emit_ipv4(asm: &mut Asm, compare: Label) {
    asm.need(Reg::R2, Reg::R9, 20, Reg::R8, compare);
    asm.load(Size::B, Reg::R3, Reg::R9, 0);
    asm.branch(Cond::Lt, Reg::R3, 0x45, compare).branch(Cond::Gt, Reg::R3, 0x4f, compare);
    copy(asm, Size::W, Reg::R9, 12, SRC_IP, 4);
    copy(asm, Size::W, Reg::R9, 16, DST_IP, 4);
    copy(asm, Size::B, Reg::R9, 1, TOS, 1);
    copy(asm, Size::B, Reg::R9, 8, TTL, 1);
    asm.load(Size::B, Reg::R4, Reg::R9, 9).store(Size::B, Reg::R10, KEY + PROTO as i16, Reg::R4);
    asm.alu(AluOp::Or, Reg::R5, i32::from(HAS_IPV4));
    // Only the first fragment has ports.
    asm.load(Size::H, Reg::R1, Reg::R9, 6).branch(Cond::Set, Reg::R1, net16(0x1fff), compare);
    asm.and(Reg::R3, 0xf).alu(AluOp::Lsh, Reg::R3, 2).add(Reg::R9, Reg::R3);
}

#[cfg(test)]
mod tests {
    use sys::bpf::{Program as Loaded, TestRun};

    use super::super::key::Key;
    use super::super::key::tests::frame;
    use super::super::spec::tests::{ethernet, specs, udp};
    use super::*;

    /// Every verdict of the kernel for frames that are whole, cut and changed is that of [`Match::covers`].
    #[test]
    fn the_kernel_takes_the_frames_that_the_rules_cover() {
        let Ok((program, maps)) = Loaded::load_with_maps(&program(1, &HintKfuncs::default()).unwrap()) else {
            eprintln!("skipped: needs CAP_BPF");
            return;
        };
        let mut frames = Vec::new();
        for v6 in [false, true] {
            for tag in [None, Some(0x2007)] {
                for proto in [TCP, UDP, 1] {
                    let whole = frame(v6, proto, tag);
                    frames.extend((14..=whole.len()).map(|len| whole[..len].to_vec()));
                    for i in 0..whole.len() {
                        let mut changed = whole.clone();
                        changed[i] ^= 0x11;
                        frames.push(changed);
                    }
                }
            }
        }
        let key_of_first = |frame: &[u8]| {
            let key = Key::of(frame);
            Match { value: key, mask: Key([0xff; KEY_LEN]) }
        };
        let mut rules: Vec<Match> =
            frames.iter().step_by(97).map(|frame| key_of_first(frame)).take(FLOWS_MAX - 4).collect();
        rules.push(specs(&[ethernet([2, 0, 0, 0, 0, 3])]).unwrap().matches);
        rules.push(specs(&[udp(2000)]).unwrap().matches);
        for (i, rule) in rules.iter().enumerate() {
            maps[0].update(&(i as u32).to_ne_bytes(), &encode(Some((rule, true)))).unwrap();
        }
        let mut dropped = 0;
        for frame in &frames {
            let covered = rules.iter().any(|rule| rule.covers(&Key::of(frame)));
            let verdict = program
                .test_run(&TestRun { packet: frame, repeat: 1, ..TestRun::default() })
                .unwrap()
                .verdict;
            let expected = if covered { XdpAction::Drop } else { XdpAction::Pass };
            assert_eq!(verdict, expected.number(), "{frame:02x?}");
            dropped += usize::from(covered);
        }
        assert!(dropped > 50 && dropped < frames.len() - 50, "{dropped} of {}", frames.len());
    }
}
