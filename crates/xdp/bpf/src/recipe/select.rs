//! Selects the packets that a program handles, and parses the fields that later blocks need.

use super::emit::{Emit, eth, net16};
use super::{RecipeError, frame, in_range};
use crate::insn::{Cond, Reg, Size};
use crate::map::{MapDef, MapKind};

/// Name of the array of QPN slots: 4096 values of 32 bits, 0 if the slot does not belong to this process.
pub const SLOTS: &str = "slots";
/// Number of the values.
const SLOTS_LEN: u32 = 1 << 12;
/// Position of the slot in a QPN: bits 23..12.
const SLOT_SHIFT: i32 = 12;
/// Name of the table of local addresses. Key: 16 bytes, IPv4 as `::ffff:a.b.c.d`. Value: 32 bits, ignored.
pub const ADDRESSES: &str = "addresses";

/// Maximum number of 802.1Q and 802.1ad tags that are skipped (QinQ).
const TAGS_MAX: usize = 2;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const TAG_LEN: i32 = 4;
/// Maximum number of addresses of one interface.
const ADDRESSES_MAX: u32 = 1024;
/// QP 0 and QP 1 belong to the management of the port (IBA 13.5.1).
const FIRST_ORDINARY_QP: i32 = 2;
const UDP: i32 = 17;
const UDP_LEN: i32 = 8;
const BTH_LEN: i32 = 12;

/// Packets to which stages and action apply; all others pass.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Select {
    /// Every packet, unparsed.
    All,
    /// IPv4 and IPv6 packets, with up to two VLAN tags. Parses the source address.
    Ip,
    /// UDP packets to `port` that are long enough for a BTH: unfragmented IPv4 with or without options, IPv6
    /// without extension headers. Parses the source address and the destination QPN.
    Roce {
        /// UDP destination port, normally 4791.
        port: u16,
    },
}

impl Select {
    pub(super) fn emit(self, emit: &mut Emit) -> Result<(), RecipeError> {
        match self {
            Select::All => {}
            Select::Ip => ip(emit, None),
            Select::Roce { port } => {
                in_range(port > 0, "the UDP port")?;
                ip(emit, Some(port));
            }
        }
        Ok(())
    }

    pub(super) fn require_source(self, what: &'static str) -> Result<(), RecipeError> {
        match self {
            Select::All => Err(RecipeError::NeedsSource(what)),
            Select::Ip | Select::Roce { .. } => Ok(()),
        }
    }

    pub(super) fn require_dest_qp(self, what: &'static str) -> Result<(), RecipeError> {
        match self {
            Select::All | Select::Ip => Err(RecipeError::NeedsDestQp(what)),
            Select::Roce { .. } => Ok(()),
        }
    }
}

/// Emits the parser. R9 is the current header, R2 the end of the bytes that it needs, R1 a field.
fn ip(emit: &mut Emit, roce_port: Option<u16>) {
    emit.load_packet();
    let (pass, wants_destination) = (emit.pass(), emit.wants_destination);
    let asm = &mut emit.asm;
    let (network, ipv4, transport, end) = (asm.label(), asm.label(), asm.label(), asm.label());
    let behind_ip = if roce_port.is_some() { transport } else { end };

    asm.need(Reg::R2, Reg::R7, eth::LEN, Reg::R8, pass);
    asm.load(Size::H, Reg::R1, Reg::R7, eth::TYPE);
    asm.mov(Reg::R9, Reg::R7).add(Reg::R9, eth::LEN);
    for _ in 0..TAGS_MAX {
        let tagged = asm.label();
        asm.branch(Cond::Eq, Reg::R1, net16(VLAN), tagged);
        asm.branch(Cond::Ne, Reg::R1, net16(SERVICE_VLAN), network);
        asm.bind(tagged).need(Reg::R2, Reg::R9, TAG_LEN, Reg::R8, pass);
        asm.load(Size::H, Reg::R1, Reg::R9, 2).add(Reg::R9, TAG_LEN);
    }
    asm.bind(network).branch(Cond::Eq, Reg::R1, net16(eth::IPV4), ipv4);
    asm.branch(Cond::Ne, Reg::R1, net16(eth::IPV6), pass);

    // IPv6: version, next header, source.
    asm.need(Reg::R2, Reg::R9, 40, Reg::R8, pass);
    asm.load(Size::B, Reg::R1, Reg::R9, 0).rsh(Reg::R1, 4).branch(Cond::Ne, Reg::R1, 6, pass);
    if roce_port.is_some() {
        asm.load(Size::B, Reg::R1, Reg::R9, 6).branch(Cond::Ne, Reg::R1, UDP, pass);
    }
    for word in (0..16).step_by(4) {
        asm.load(Size::W, Reg::R1, Reg::R9, 8 + word).store(Size::W, Reg::R10, frame::SOURCE + word, Reg::R1);
        if wants_destination {
            asm.load(Size::W, Reg::R1, Reg::R9, 24 + word);
            asm.store(Size::W, Reg::R10, frame::DESTINATION + word, Reg::R1);
        }
    }
    asm.add(Reg::R9, 40).jump(behind_ip);

    // IPv4: version and header length in one byte, 0x45 to 0x4f; protocol; more-fragments and offset; source.
    asm.bind(ipv4).need(Reg::R2, Reg::R9, 20, Reg::R8, pass);
    asm.load(Size::B, Reg::R3, Reg::R9, 0);
    asm.branch(Cond::Lt, Reg::R3, 0x45, pass).branch(Cond::Gt, Reg::R3, 0x4f, pass);
    if roce_port.is_some() {
        asm.load(Size::B, Reg::R1, Reg::R9, 9).branch(Cond::Ne, Reg::R1, UDP, pass);
        asm.load(Size::H, Reg::R1, Reg::R9, 6).branch(Cond::Set, Reg::R1, net16(0x3fff), pass);
    }
    let addresses = [(12, frame::SOURCE), (16, frame::DESTINATION)];
    for (field, place) in addresses.into_iter().take(if wants_destination { 2 } else { 1 }) {
        asm.load(Size::W, Reg::R1, Reg::R9, field);
        asm.store(Size::Dw, Reg::R10, place, 0);
        asm.store(Size::W, Reg::R10, place + 8, 0xffff_0000_u32 as i32);
        asm.store(Size::W, Reg::R10, place + 12, Reg::R1);
    }

    if let Some(port) = roce_port {
        asm.and(Reg::R3, 0xf).alu(crate::insn::AluOp::Lsh, Reg::R3, 2).add(Reg::R9, Reg::R3);
        asm.bind(transport).need(Reg::R2, Reg::R9, UDP_LEN + BTH_LEN, Reg::R8, pass);
        asm.load(Size::H, Reg::R1, Reg::R9, 2).branch(Cond::Ne, Reg::R1, net16(port), pass);
        asm.load(Size::W, Reg::R1, Reg::R9, UDP_LEN as i16 + 4).to_be(Size::W, Reg::R1);
        asm.and(Reg::R1, 0x00ff_ffff).store(Size::W, Reg::R10, frame::DEST_QP, Reg::R1);
    }
    asm.bind(end);
}

/// Emits code that passes packets with a destination address that is not local.
pub(super) fn addressed(select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
    select.require_source("the destination address")?;
    let pass = emit.pass();
    let addresses = emit.asm.map(MapDef::new(ADDRESSES, MapKind::Hash, 16, 4, ADDRESSES_MAX));
    emit.lookup(addresses, frame::DESTINATION);
    emit.if_null(pass);
    Ok(())
}

/// Emits code that passes packets of foreign slots, and of QP 0 and QP 1, which all processes share.
pub(super) fn owned(select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
    select.require_dest_qp("ownership of QPNs")?;
    let pass = emit.pass();
    let slots = emit.asm.map(MapDef::array(SLOTS, 4, SLOTS_LEN));
    emit.asm.load(Size::W, Reg::R1, Reg::R10, frame::DEST_QP);
    emit.asm.branch(Cond::Lt, Reg::R1, FIRST_ORDINARY_QP, pass).rsh(Reg::R1, SLOT_SHIFT);
    emit.asm.store(Size::W, Reg::R10, frame::KEY, Reg::R1);
    emit.lookup(slots, frame::KEY);
    emit.if_null(pass);
    emit.asm.load(Size::W, Reg::R1, Reg::R0, 0).branch(Cond::Eq, Reg::R1, 0, pass);
    Ok(())
}
