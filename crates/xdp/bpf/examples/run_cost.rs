//! Measures the cost of a program per packet in the user-space machine, as a hook runs it: the first bytes of
//! the packet are in the buffer, the rest elsewhere.
//!
//!     cargo run --release -p roxie-bpf --example run_cost

use std::hint::black_box;
use std::time::Instant;

use roxie_bpf::vm::{Env, Image, Machine, Replay, XdpBuff};
use roxie_bpf::{
    Asm, Cond, Helper, Map, MapDef, MapRef, Program, ProgramKind, Recipe, Reg, Size, XdpAction, XdpMd,
};

const RUNS: u32 = 2_000_000;
const ROUNDS: usize = 5;
const DATA: usize = 342;

struct Host;

impl Env for Host {
    fn ktime_ns(&mut self) -> u64 {
        0
    }

    fn random(&mut self) -> u32 {
        0
    }
}

fn assembled(name: &str, emit: impl FnOnce(&mut Asm)) -> Program {
    let mut asm = Asm::new(name);
    emit(&mut asm);
    asm.finish().expect("the program is complete")
}

/// Reads one byte and returns PASS.
fn look() -> Program {
    assembled("look", |asm| {
        asm.load_ctx(Reg::R2, Reg::R1, XdpMd::Data).load(Size::B, Reg::R3, Reg::R2, 12).ret(XdpAction::Pass);
    })
}

/// The code that clang generates for a program that counts packets and bytes per CPU.
fn count() -> Program {
    assembled("count", |asm| {
        let (counters, none): (MapRef, _) = (asm.map(MapDef::percpu_array("counters", 16, 5)), asm.label());
        asm.mov(Reg::R6, Reg::R1).mov(Reg::R1, 2).store(Size::W, Reg::R10, -4, Reg::R1);
        asm.mov(Reg::R2, Reg::R10).add(Reg::R2, -4).load_map(Reg::R1, counters).call(Helper::MapLookupElem);
        asm.branch(Cond::Eq, Reg::R0, 0, none);
        asm.load(Size::Dw, Reg::R1, Reg::R0, 0).add(Reg::R1, 1).store(Size::Dw, Reg::R0, 0, Reg::R1);
        asm.load_ctx(Reg::R1, Reg::R6, XdpMd::Data).load_ctx(Reg::R2, Reg::R6, XdpMd::DataEnd);
        asm.alu(roxie_bpf::AluOp::Sub, Reg::R2, Reg::R1).load(Size::Dw, Reg::R1, Reg::R0, 8);
        asm.add(Reg::R2, Reg::R1).store(Size::Dw, Reg::R0, 8, Reg::R2).bind(none).ret(XdpAction::Pass);
    })
}

/// Finds the destination QPN of a RoCE packet, as the steering program does.
fn parse() -> Program {
    let recipe = Recipe { counters: true, ..Recipe::steer(4791, 4) };
    recipe.program("parse", ProgramKind::Xdp).expect("the recipe is valid")
}

fn main() {
    let mut frame = vec![0; 14 + 20 + 8];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[14 + 9] = 17;
    frame[36..38].copy_from_slice(&4791_u16.to_be_bytes());
    frame.extend([4, 0, 0xff, 0xff, 0, 0x11, 0, 0x42]);
    frame.resize(1086, 0x55);
    let mut buffer = vec![0; DATA + 4096 + 512];
    for program in [look(), count(), parse()] {
        let maps = program.maps.iter().map(|def| Map::new(def, 1).expect("small")).collect();
        let image = Image::new(&program, maps).expect("the machine accepts the program");
        let (mut machine, mut replay) = (Machine::new(0), Replay::default());
        let mut best = [f64::INFINITY; 2];
        for round in 0..2 * ROUNDS {
            let begun = Instant::now();
            for _ in 0..RUNS {
                buffer[DATA..DATA + 106].copy_from_slice(&frame[..106]);
                let buff = XdpBuff::new(&mut buffer, DATA..DATA + 106)
                    .and_then(|buff| buff.with_rest(&frame[106..]));
                let mut buff = buff.expect("the packet fits into the buffer");
                let buff = black_box(&mut buff);
                black_box(if round % 2 == 0 {
                    machine.run(&image, buff, &mut Host)
                } else {
                    machine.run_or_replay(&image, &mut replay, buff, &mut Host)
                });
            }
            let ns = begun.elapsed().as_nanos() as f64 / f64::from(RUNS);
            best[round % 2] = best[round % 2].min(ns);
        }
        let [run, replayed] = best;
        let (name, slots) = (image.name(), program.slots.len());
        println!("{name:<8} {run:6.1} ns a packet, replayed {replayed:6.1}, {slots} slots");
    }
}
