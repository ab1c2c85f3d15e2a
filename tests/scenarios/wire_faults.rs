//! XDP programs with faults that no hook has: on an interface, or in the egress hook of a side.

use std::path::{Path, PathBuf};

use bpf::{AluOp, Asm, Cond, Helper, Label, MapDef, Reg, Size, XdpAction, XdpMd, object};
use roxie_tests::lab::{Lab, Side};

use crate::scenario::place;

/// Offsets in a frame of Ethernet, IPv4 and UDP.
const UDP_LEN: i16 = 38;
const BTH: i16 = 42;
const P_KEY: i16 = BTH + 2;
const DEST_QP: i16 = BTH + 5;
const PAYLOAD: i16 = BTH + 12;
/// Offsets in a management datagram, after BTH and DETH.
const ATTRIBUTE: i16 = PAYLOAD + 8 + 16;
/// Offsets in a ConnectRequest.
const LOCAL_QPN: i16 = PAYLOAD + 8 + 24 + 32;

const SEND_ONLY: i32 = 0x04;
/// Length of a SEND of 200 bytes with all its headers but Ethernet and IP.
const LEN_200: u16 = 8 + 12 + 200 + 4;

/// Flips a bit of the first SEND of 200 bytes that arrives at the server.
pub(crate) fn damage(lab: &Lab) -> Result<(), String> {
    attach(lab, "damage", |asm, pass| {
        once(asm, pass);
        asm.load(Size::B, Reg::R2, Reg::R7, PAYLOAD).alu(AluOp::Xor, Reg::R2, 0x10);
        asm.store(Size::B, Reg::R7, PAYLOAD, Reg::R2);
    })
}

/// Removes the last 40 bytes of the first SEND of 200 bytes.
pub(crate) fn cut(lab: &Lab) -> Result<(), String> {
    attach(lab, "cut", |asm, pass| {
        once(asm, pass);
        asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, -40).call(Helper::XdpAdjustTail);
    })
}

/// Changes the partition of all packets but those of the connection manager.
pub(crate) fn other_p_key(dir: &Path) -> Result<PathBuf, String> {
    assemble(dir, "pkey", |asm, pass| {
        let other = asm.label();
        asm.load(Size::B, Reg::R2, Reg::R7, DEST_QP).branch(Cond::Ne, Reg::R2, 0, other);
        asm.load(Size::B, Reg::R2, Reg::R7, DEST_QP + 1).branch(Cond::Ne, Reg::R2, 0, other);
        asm.load(Size::B, Reg::R2, Reg::R7, DEST_QP + 2).branch(Cond::Eq, Reg::R2, 1, pass);
        asm.bind(other).store(Size::H, Reg::R7, P_KEY, net16(0x9234));
    })
}

/// Writes the same queue pair number into every ConnectRequest.
pub(crate) fn same_qpn(dir: &Path) -> Result<PathBuf, String> {
    assemble(dir, "qpn", |asm, pass| {
        asm.need(Reg::R3, Reg::R7, i32::from(LOCAL_QPN) + 3, Reg::R8, pass);
        asm.load(Size::H, Reg::R2, Reg::R7, ATTRIBUTE).branch(Cond::Ne, Reg::R2, net16(0x0010), pass);
        for (at, byte) in [(0, 0), (1, 0x12), (2, 0x34)] {
            asm.store(Size::B, Reg::R7, LOCAL_QPN + at, byte);
        }
    })
}

/// Continues with the first SEND of 200 bytes only; its retransmissions pass.
fn once(asm: &mut Asm, pass: Label) {
    asm.load(Size::B, Reg::R2, Reg::R7, BTH).branch(Cond::Ne, Reg::R2, SEND_ONLY, pass);
    asm.load(Size::H, Reg::R2, Reg::R7, UDP_LEN).branch(Cond::Ne, Reg::R2, net16(LEN_200), pass);
    let done = asm.map(MapDef::array("done", 8, 1));
    asm.store(Size::W, Reg::R10, -4, 0).load_map(Reg::R1, done).mov(Reg::R2, Reg::R10).add(Reg::R2, -4);
    asm.call(Helper::MapLookupElem).branch(Cond::Eq, Reg::R0, 0, pass);
    asm.load(Size::Dw, Reg::R2, Reg::R0, 0).branch(Cond::Ne, Reg::R2, 0, pass);
    asm.store(Size::Dw, Reg::R0, 0, 1);
}

/// A program that runs this code on packets at least as long as a BTH, with the context in R6, the
/// beginning of the frame in R7 and its end in R8. All packets pass.
fn assemble(dir: &Path, name: &str, body: impl FnOnce(&mut Asm, Label)) -> Result<PathBuf, String> {
    let mut asm = Asm::new(name);
    let pass = asm.label();
    asm.mov(Reg::R6, Reg::R1).load_ctx(Reg::R7, Reg::R6, XdpMd::Data).load_ctx(
        Reg::R8,
        Reg::R6,
        XdpMd::DataEnd,
    );
    asm.need(Reg::R2, Reg::R7, i32::from(PAYLOAD) + 4, Reg::R8, pass);
    asm.load(Size::H, Reg::R2, Reg::R7, 36).branch(Cond::Ne, Reg::R2, net16(4791), pass);
    body(&mut asm, pass);
    asm.bind(pass).ret(XdpAction::Pass);
    let program = asm.finish().map_err(|error| format!("{error:?}"))?;
    let bytes = object::write(&program).map_err(|error| error.to_string())?;
    let path = dir.join(format!("{name}.o"));
    std::fs::write(&path, bytes).map_err(|error| error.to_string())?;
    Ok(path)
}

/// Attaches it to the server's interface, in front of the recording.
fn attach(lab: &Lab, name: &str, body: impl FnOnce(&mut Asm, Label)) -> Result<(), String> {
    let place = place();
    let object = assemble(lab.logs(), name, body)?;
    let words = ["xdp", "attach", lab.netdev(&place), &object.display().to_string()];
    let attached = lab.roxie_command(&place, Side::Server, &format!("{name} attach"), &words);
    let ended = attached.map_err(|error| error.to_string())?.wait(std::time::Duration::from_secs(10));
    if ended.succeeded() { Ok(()) } else { Err(ended.describe()) }
}

/// A number in the byte order in which a program loads it from a frame.
fn net16(value: u16) -> i32 {
    i32::from(value.swap_bytes())
}
