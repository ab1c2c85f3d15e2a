//! Tests of the machine: hand-made cases, another interpreter, and random programs.

mod arithmetic;
mod faults;
mod garbage;
mod helpers;
mod packets;
mod replay;

use std::sync::Arc;

use super::*;
use crate::map::Map;
use crate::program::Program;
use crate::{Asm, Reg};

/// Offset of packets in test buffers: the kernel's headroom.
const HEADROOM: usize = 256;

/// A host that returns fixed values unless a test changes them.
#[derive(Default)]
struct Host {
    now_ns: u64,
    random: u32,
    fib: Option<(i64, [u8; 64])>,
    fib_query: Option<[u8; 64]>,
    lines: Vec<String>,
}

impl Env for Host {
    fn ktime_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn random(&mut self) -> u32 {
        self.random
    }

    fn fib_lookup(&mut self, query: &mut [u8; 64]) -> i64 {
        self.fib_query = Some(*query);
        let Some((answer, reply)) = self.fib else { return FIB_FWD_DISABLED };
        *query = reply;
        answer
    }

    fn trace(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }
}

/// A program with its own maps, on one CPU.
struct Loaded {
    image: Image,
    program: Program,
    machine: Machine,
    host: Host,
}

impl Loaded {
    fn new(program: Program) -> Loaded {
        let maps = program.maps.iter().map(|def| Map::new(def, 2).unwrap()).collect();
        let image =
            Image::new(&program, maps).unwrap_or_else(|error| panic!("{error}\n{}", program.listing()));
        Loaded { image, program, machine: Machine::new(0), host: Host::default() }
    }

    fn asm(emit: impl FnOnce(&mut Asm)) -> Loaded {
        let mut asm = Asm::new("test");
        emit(&mut asm);
        Loaded::new(asm.finish().unwrap())
    }

    fn map(&self, name: &str) -> &Arc<Map> {
        let map = self.program.map(name).unwrap_or_else(|| panic!("no map {name}"));
        self.image.map(map).unwrap()
    }

    /// Runs the program on a packet in a page-sized buffer. Also returns the packet after the run.
    fn run(&mut self, packet: &[u8]) -> (Outcome, Vec<u8>) {
        let mut buffer = vec![0; 4096 - 320];
        buffer[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
        let mut buff = XdpBuff::new(&mut buffer, HEADROOM..HEADROOM + packet.len()).unwrap();
        (buff.ingress_ifindex, buff.rx_queue_index) = (7, 3);
        let outcome = self.machine.run(&self.image, &mut buff, &mut self.host);
        (outcome, buff.packet().to_vec())
    }

    /// Returns the result of the program on a packet of 64 zeros.
    fn returns(&mut self) -> u32 {
        let (outcome, _) = self.run(&[0; 64]);
        assert_eq!(outcome.fault, None, "{}", self.program.listing());
        outcome.returned
    }
}

#[test]
fn context_fields_have_the_kernels_offsets() {
    let mut md = Loaded::asm(|asm| {
        asm.load(crate::Size::W, Reg::R2, Reg::R1, 0).load(crate::Size::W, Reg::R3, Reg::R1, 4);
        asm.mov(Reg::R0, Reg::R3).alu(crate::AluOp::Sub, Reg::R0, Reg::R2);
        asm.load(crate::Size::W, Reg::R2, Reg::R1, 12).alu(crate::AluOp::Lsh, Reg::R2, 16);
        asm.add(Reg::R0, Reg::R2).load(crate::Size::W, Reg::R2, Reg::R1, 16);
        asm.alu(crate::AluOp::Lsh, Reg::R2, 24).add(Reg::R0, Reg::R2).exit();
    });
    assert_eq!(md.returns(), 0x0307_0040);
}

#[test]
fn functions_preserve_registers_and_have_separate_stack_frames() {
    let mut program = Loaded::asm(|asm| {
        let inner = asm.declare("inner", 1);
        asm.store(crate::Size::Dw, Reg::R10, -8, 5).mov(Reg::R6, 30);
        asm.mov(Reg::R1, Reg::R10).add(Reg::R1, -8).call_function(inner);
        asm.add(Reg::R0, Reg::R6).load(crate::Size::Dw, Reg::R1, Reg::R10, -8).add(Reg::R0, Reg::R1).exit();
        // Reads the caller's stack through a pointer and writes its own frame.
        asm.function(inner).load(crate::Size::Dw, Reg::R0, Reg::R1, 0).mov(Reg::R6, 0);
        asm.store(crate::Size::Dw, Reg::R10, -8, 1000).exit();
    });
    assert_eq!(program.returns(), 5 + 30 + 5);
}
