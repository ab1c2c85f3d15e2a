//! Tests of helpers, one behaviour each, with the kernel's error numbers.

use super::*;
use crate::{AluOp, Cond, Helper, MapDef, MapKind, Size, UpdateMode, XdpAction};

const EINVAL: u32 = -22_i32 as u32;

/// Calls helpers with the arguments (context, constant) on a packet with the 64 bytes 0, 1, 2, ...
fn adjusted(calls: &[(Helper, i32)]) -> (u32, Vec<u8>) {
    let mut loaded = Loaded::asm(|asm| {
        asm.mov(Reg::R6, Reg::R1);
        for &(helper, delta) in calls {
            asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, delta).call(helper);
        }
        asm.exit();
    });
    let packet: Vec<u8> = (0..64).collect();
    let (outcome, packet) = loaded.run(&packet);
    (outcome.returned, packet)
}

#[test]
fn adjust_head_moves_within_the_headroom() {
    let (ok, packet) = adjusted(&[(Helper::XdpAdjustHead, 4)]);
    assert_eq!((ok, packet.len(), packet[0]), (0, 60, 4));
    let (ok, packet) = adjusted(&[(Helper::XdpAdjustHead, -216)]);
    assert_eq!((ok, packet.len()), (0, 280));
    assert_eq!(adjusted(&[(Helper::XdpAdjustHead, -217)]).0, EINVAL, "the kernel keeps 40 bytes");
    assert_eq!(adjusted(&[(Helper::XdpAdjustHead, 50)]).0, 0);
    assert_eq!(adjusted(&[(Helper::XdpAdjustHead, 51)]).0, EINVAL, "an Ethernet header must remain");
    assert_eq!(adjusted(&[(Helper::XdpAdjustHead, i32::MIN)]).0, EINVAL);
}

#[test]
fn adjust_tail_moves_within_the_tailroom_and_adds_zeros() {
    let (ok, packet) = adjusted(&[(Helper::XdpAdjustTail, -50)]);
    assert_eq!((ok, packet), (0, (0..14).collect()));
    assert_eq!(adjusted(&[(Helper::XdpAdjustTail, -51)]).0, EINVAL);
    let (ok, packet) = adjusted(&[(Helper::XdpAdjustTail, -4), (Helper::XdpAdjustTail, 8)]);
    assert_eq!((ok, packet.len(), &packet[58..]), (0, 68, &[58, 59, 0, 0, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(adjusted(&[(Helper::XdpAdjustTail, 3456)]).0, 0, "to the end of the buffer");
    assert_eq!(adjusted(&[(Helper::XdpAdjustTail, 3457)]).0, EINVAL);
}

#[test]
fn metadata_is_in_front_of_the_packet_and_moves_with_it() {
    let mut loaded = Loaded::asm(|asm| {
        asm.mov(Reg::R6, Reg::R1).mov(Reg::R2, -8).call(Helper::XdpAdjustMeta);
        asm.load(Size::W, Reg::R1, Reg::R6, 8).load_imm64(Reg::R2, 0x0807_0605_0403_0201);
        asm.store(Size::Dw, Reg::R1, 0, Reg::R2);
        asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, -4).call(Helper::XdpAdjustHead).exit();
    });
    let mut buffer = [0xee; 512];
    let mut buff = XdpBuff::new(&mut buffer, 256..320).unwrap();
    let outcome = loaded.machine.run(&loaded.image, &mut buff, &mut loaded.host);
    assert_eq!((outcome.fault, outcome.returned), (None, 0));
    assert_eq!(buff.metadata(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(buff.range(), 252..320);
    assert_eq!(adjusted(&[(Helper::XdpAdjustMeta, -6)]).0, -13_i32 as u32);
    assert_eq!(adjusted(&[(Helper::XdpAdjustMeta, -256)]).0, EINVAL);
    assert_eq!(adjusted(&[(Helper::XdpAdjustMeta, -252)]).0, EINVAL, "beyond the headroom");
    assert_eq!(adjusted(&[(Helper::XdpAdjustMeta, 4)]).0, EINVAL);
}

/// A program that copies `len` bytes at `from` of the packet over those at `to`, by helpers.
fn copier(from: i32, to: i32, len: i32) -> Loaded {
    Loaded::asm(|asm| {
        let out = asm.label();
        asm.mov(Reg::R6, Reg::R1);
        for (helper, at) in [(Helper::XdpLoadBytes, from), (Helper::XdpStoreBytes, to)] {
            asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, at).mov(Reg::R3, Reg::R10).add(Reg::R3, -64);
            asm.mov(Reg::R4, len).call(helper).branch(Cond::Ne, Reg::R0, 0, out);
        }
        asm.bind(out).exit();
    })
}

#[test]
fn bytes_are_loaded_and_stored_across_fragments() {
    let mut linear: Vec<u8> = vec![0; 256];
    linear.extend(0..20);
    let (mut second, mut third): (Vec<u8>, Vec<u8>) = ((20..23).collect(), (23..60).collect());
    let mut frags = [&mut second[..], &mut third[..]];
    let mut buff = XdpBuff::new(&mut linear, 256..276).unwrap().with_frags(&mut frags);
    let mut loaded = copier(18, 21, 10);
    let outcome = loaded.machine.run(&loaded.image, &mut buff, &mut loaded.host);
    assert_eq!((outcome.fault, outcome.returned, buff.total_len()), (None, 0, 60));
    assert_eq!(second, [20, 18, 19]);
    assert_eq!(third[..9], [20, 21, 22, 23, 24, 25, 26, 27, 31]);
    assert_eq!(linear[256..], (0..20).collect::<Vec<u8>>());
}

#[test]
fn adjust_tail_cuts_the_last_fragment_first() {
    let cut = |len: i32| {
        let mut linear = vec![0; 276];
        let (mut second, mut third) = ([0; 3], [0; 37]);
        let mut frags = [&mut second[..], &mut third[..]];
        let mut buff = XdpBuff::new(&mut linear, 256..276).unwrap().with_frags(&mut frags);
        let mut loaded = Loaded::asm(|asm| {
            asm.mov(Reg::R2, len).call(Helper::XdpAdjustTail).exit();
        });
        let outcome = loaded.machine.run(&loaded.image, &mut buff, &mut loaded.host);
        (outcome.returned, buff.total_len(), buff.range().len())
    };
    assert_eq!(cut(-1), (0, 59, 20));
    assert_eq!(cut(-38), (0, 22, 20));
    assert_eq!(cut(-46), (0, 14, 14));
    assert_eq!(cut(-47), (EINVAL, 60, 20));
    assert_eq!(cut(1), (-95_i32 as u32, 60, 20));
}

#[test]
fn loads_beyond_the_packet_fail_without_a_fault() {
    assert_eq!(copier(55, 0, 10).returns(), EINVAL);
    assert_eq!(copier(54, 0, 10).returns(), 0);
    assert_eq!(copier(0x1_0000, 0, 10).returns(), -14_i32 as u32);
}

#[test]
fn a_redirect_selects_the_entry_or_the_fallback_verdict() {
    let mut loaded = Loaded::asm(|asm| {
        let map = asm.map(MapDef::xskmap("xsks", 4));
        asm.load(Size::W, Reg::R2, Reg::R1, 16).load_map(Reg::R1, map).mov(Reg::R3, 2);
        asm.call(Helper::RedirectMap).exit();
    });
    let (outcome, _) = loaded.run(&[0; 64]);
    assert_eq!((outcome.action(), outcome.redirect), (XdpAction::Pass, None));
    loaded.map("xsks").update(&[3, 0, 0, 0], &[42, 0, 0, 0], UpdateMode::Any).unwrap();
    let (outcome, _) = loaded.run(&[0; 64]);
    let map = loaded.program.map("xsks").unwrap();
    assert_eq!(outcome.action(), XdpAction::Redirect);
    assert_eq!(outcome.redirect, Some(Redirect::Map { map, key: 3, value: 42, flags: 2 }));
}

#[test]
fn redirect_flags_must_suit_the_map() {
    let run = |def: MapDef, flags: i32| {
        let mut loaded = Loaded::asm(|asm| {
            let map = asm.map(def);
            asm.load_map(Reg::R1, map).mov(Reg::R2, 9).mov(Reg::R3, flags).call(Helper::RedirectMap).exit();
        });
        loaded.run(&[0; 64]).0
    };
    let devices = || MapDef::new("d", MapKind::DevmapHash, 4, 8, 4);
    assert_eq!(run(devices(), 1).action(), XdpAction::Drop);
    assert_eq!(run(devices(), 4).action(), XdpAction::Aborted);
    let broadcast = run(devices(), 8 | 16);
    assert_eq!(broadcast.action(), XdpAction::Redirect);
    assert!(matches!(broadcast.redirect, Some(Redirect::Map { flags: 24, .. })));
    assert_eq!(run(MapDef::xskmap("x", 4), 8).action(), XdpAction::Aborted);
    let mut interface = Loaded::asm(|asm| {
        asm.mov(Reg::R1, 5).mov(Reg::R2, 0).call(Helper::Redirect).exit();
    });
    let (outcome, _) = interface.run(&[0; 64]);
    assert_eq!(outcome.redirect, Some(Redirect::Interface(5)));
}

#[test]
fn updates_and_deletes_by_programs_return_the_kernels_errors() {
    // Flags are in R4, key 1 is on the stack; returns the result of the helper.
    let run = |kind, helper: Helper, flags: i32, times: u32| {
        let mut loaded = Loaded::asm(|asm| {
            let map = asm.map(MapDef::new("m", kind, 4, 8, 1));
            asm.store(Size::W, Reg::R10, -4, 1).store(Size::Dw, Reg::R10, -16, 77);
            asm.load_map(Reg::R1, map).mov(Reg::R2, Reg::R10).add(Reg::R2, -4);
            asm.mov(Reg::R3, Reg::R10).add(Reg::R3, -16).mov(Reg::R4, flags).call(helper).exit();
        });
        (0..times).map(|_| loaded.returns() as i32).last().unwrap()
    };
    assert_eq!(run(MapKind::Hash, Helper::MapUpdateElem, 0, 2), 0);
    assert_eq!(run(MapKind::Hash, Helper::MapUpdateElem, 1, 2), -17);
    assert_eq!(run(MapKind::Hash, Helper::MapUpdateElem, 2, 1), -2);
    assert_eq!(run(MapKind::Hash, Helper::MapUpdateElem, 9, 1), -22);
    assert_eq!(run(MapKind::Array, Helper::MapUpdateElem, 0, 1), -7);
    assert_eq!(run(MapKind::Hash, Helper::MapDeleteElem, 0, 1), -2);
    assert_eq!(run(MapKind::Array, Helper::MapDeleteElem, 0, 1), -22);
}

#[test]
fn a_program_sees_the_value_of_its_cpu() {
    let mut loaded = Loaded::asm(|asm| {
        let map = asm.map(MapDef::percpu_array("m", 8, 1));
        let out = asm.label();
        asm.store(Size::W, Reg::R10, -4, 0).mov(Reg::R2, Reg::R10).add(Reg::R2, -4).load_map(Reg::R1, map);
        asm.call(Helper::MapLookupElem).branch(Cond::Eq, Reg::R0, 0, out);
        asm.load(Size::Dw, Reg::R1, Reg::R0, 0).add(Reg::R1, 1).store(Size::Dw, Reg::R0, 0, Reg::R1);
        asm.bind(out).mov(Reg::R0, 0).exit();
    });
    for cpu in [0, 1, 1] {
        loaded.machine = Machine::new(cpu);
        loaded.returns();
    }
    assert_eq!(loaded.map("m").lookup(&[0; 4]).unwrap(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn csum_diff_agrees_with_the_internet_checksum() {
    let diff = |from: u32, to: u32, seed: u64| {
        let mut loaded = Loaded::asm(|asm| {
            asm.store(Size::W, Reg::R10, -8, from as i32).store(Size::W, Reg::R10, -4, to as i32);
            asm.mov(Reg::R1, Reg::R10).add(Reg::R1, -8).mov(Reg::R2, 4);
            asm.mov(Reg::R3, Reg::R10).add(Reg::R3, -4).mov(Reg::R4, 4);
            asm.load_imm64(Reg::R5, seed).call(Helper::CsumDiff).exit();
        });
        loaded.returns()
    };
    assert_eq!(diff(0, 0x0001_0002, 0), 3);
    assert_eq!(diff(0x0001_0002, 0x0001_0002, 0) % 0xffff, 0);
    assert_eq!(diff(0x0000_0001, 0, 0) % 0xffff, 0xfffe);
    assert_eq!(diff(0, 0xffff_0000, 0xffff) % 0xffff, 0);
    let mut odd = Loaded::asm(|asm| {
        asm.mov(Reg::R1, Reg::R10).mov(Reg::R2, 3).mov(Reg::R3, 0).mov(Reg::R4, 0).mov(Reg::R5, 0);
        asm.call(Helper::CsumDiff).exit();
    });
    assert_eq!(odd.returns(), EINVAL);
}

#[test]
fn a_record_that_is_not_submitted_is_discarded_when_the_program_ends() {
    let mut loaded = Loaded::asm(|asm| {
        let ring = asm.map(MapDef::ringbuf("ring", 4096));
        let out = asm.label();
        asm.load_map(Reg::R1, ring).mov(Reg::R2, 8).mov(Reg::R3, 0).call(Helper::RingbufReserve);
        asm.mov(Reg::R6, Reg::R0).branch(Cond::Eq, Reg::R0, 0, out).store(Size::Dw, Reg::R0, 0, 0x55);
        asm.load_map(Reg::R1, ring).mov(Reg::R2, 8).mov(Reg::R3, 0).call(Helper::RingbufReserve);
        asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, 0).call(Helper::RingbufSubmit);
        asm.bind(out).mov(Reg::R0, 2).exit();
    });
    for _ in 0..1000 {
        assert_eq!(loaded.returns(), 2);
        let mut records = Vec::new();
        loaded.map("ring").ring().unwrap().consume(|record| records.push(record.to_vec()));
        assert_eq!(records, [[0x55, 0, 0, 0, 0, 0, 0, 0]]);
    }
}

#[test]
fn a_perf_event_has_the_data_and_the_front_of_the_packet() {
    let mut loaded = Loaded::asm(|asm| {
        let events = asm.map(MapDef::new("events", MapKind::PerfEventArray, 4, 4, 0));
        asm.store(Size::W, Reg::R10, -4, 0x0403_0201).load_map(Reg::R2, events);
        asm.load_imm64(Reg::R3, 3 << 32 | 0xffff_ffff).mov(Reg::R4, Reg::R10).add(Reg::R4, -4);
        asm.mov(Reg::R5, 4).call(Helper::PerfEventOutput).exit();
    });
    let (outcome, _) = loaded.run(&[9; 64]);
    assert_eq!((outcome.fault, outcome.returned), (None, 0));
    let mut records = Vec::new();
    loaded.map("events").ring().unwrap().consume(|record| records.push(record.to_vec()));
    assert_eq!(records, [[1, 2, 3, 4, 9, 9, 9]]);
}

#[test]
fn printed_lines_reach_the_host() {
    let format = b"q %d of %u: %llx %c%%\n\0";
    let mut def = MapDef::array(".rodata", format.len() as u32, 1);
    def.initial = format.to_vec();
    let mut loaded = Loaded::asm(|asm| {
        let text = asm.map(def);
        asm.load_map_value(Reg::R1, text, 0).mov(Reg::R2, format.len() as i32).mov(Reg::R3, -3);
        asm.mov(Reg::R4, 64).load_imm64(Reg::R5, 0xdead_beef_0000).call(Helper::TracePrintk).exit();
    });
    // Four conversions but three values: an error, as in the kernel.
    assert_eq!(loaded.returns(), EINVAL);
    assert!(loaded.host.lines.is_empty());
    loaded
        .map(".rodata")
        .update(&[0; 4], &pad(b"q %d of %u: %llx\n\0", format.len()), UpdateMode::Any)
        .unwrap();
    assert_eq!(loaded.returns(), 25);
    assert_eq!(loaded.host.lines, ["q -3 of 64: deadbeef0000"]);
}

fn pad(text: &[u8], len: usize) -> Vec<u8> {
    let mut text = text.to_vec();
    text.resize(len, 0);
    text
}

#[test]
fn time_random_numbers_and_cpu_come_from_the_host() {
    let mut loaded = Loaded::asm(|asm| {
        asm.call(Helper::KtimeGetNs).mov(Reg::R6, Reg::R0).call(Helper::GetPrandomU32);
        asm.alu(AluOp::Lsh, Reg::R0, 8).add(Reg::R6, Reg::R0).call(Helper::GetSmpProcessorId);
        asm.alu(AluOp::Lsh, Reg::R0, 16).add(Reg::R0, Reg::R6).exit();
    });
    (loaded.host.now_ns, loaded.host.random, loaded.machine) = (5, 6, Machine::new(7));
    assert_eq!(loaded.returns(), 0x0007_0605);
}

#[test]
fn the_last_bytes_of_a_packet_are_fetched_on_access() {
    // A program that returns byte R0 of the packet by a plain load.
    let at = |offset: i16| {
        Loaded::asm(|asm| {
            asm.load(crate::Size::W, Reg::R2, Reg::R1, 0).load(crate::Size::B, Reg::R0, Reg::R2, offset);
            asm.exit();
        })
    };
    for (offset, expected) in [(15, 1), (16, 2), (39, 2)] {
        let mut program = at(offset);
        let mut buffer = vec![1; 600];
        let rest = [2; 24];
        let mut buff = XdpBuff::new(&mut buffer, 256..272).unwrap().with_rest(&rest).unwrap();
        assert_eq!((buff.total_len(), buff.window()), (40, 256..272));
        let outcome = program.machine.run(&program.image, &mut buff, &mut program.host);
        assert_eq!((outcome.returned, outcome.fault, buff.is_changed()), (expected, None, false));
        assert_eq!(buff.window() == (256..296), offset >= 16, "fetched exactly when the offset needs it");
        buff.fetch_rest();
        assert_eq!(buff.packet(), [&[1; 16][..], &rest].concat());
    }
    let mut buffer = vec![0; 300];
    assert!(XdpBuff::new(&mut buffer, 256..290).unwrap().with_rest(&[0; 11]).is_none(), "no space");
}
