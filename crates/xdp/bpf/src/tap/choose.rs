//! Selection of packets: the program checks the transport headers of each packet in a buffer.
//!
//! The program admits every packet that may satisfy the conditions. The reader applies the conditions that
//! need the whole packet or other knowledge. All packets of a buffer are checked even if the first is
//! admitted, because losses are counted in packets.

use super::{BUFFER_LEN, Emit, IP, IPV4_LEN, NUMBER, OUTER, SEGMENT, SEGMENTS_MAX, STATE, UDP, UDP_LEN};
use super::{net16, state};
use crate::asm::Label;
use crate::helper::Helper;
use crate::insn::{AluOp, Cond, Reg, Size};
use crate::map::{MapDef, MapKind, MapRef};

/// Name of the table of wanted queue pairs: QPN to 1, both 32 bits in host byte order. The reader adds the
/// QPNs that it wants; the program adds the QPNs of their peers when it sees the connection being made.
pub const TAP_QPS: &str = "tap_qps";

/// A conjunction of conditions on packets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TapConditions {
    /// Properties of each opcode.
    pub opcodes: Box<[TapOpcode; 256]>,
    /// Admit only packets to a queue pair in [`TAP_QPS`], datagrams from one, and everything to QP 1.
    pub by_queue_pair: bool,
    /// Admit only packet sequence numbers from the first to the second, modulo 2^24.
    pub psns: Option<(u32, u32)>,
    /// Admit only NAKs.
    pub naks: bool,
    /// Admit only congestion notification packets (CNP) and packets that a router marked.
    pub congestion: bool,
    /// Admit only packets that show an error in their headers (NAKs, unknown opcodes or versions, packets
    /// shorter than their headers), and everything to QP 1.
    pub errors: bool,
    /// Sampling interval: of this many packets, admit the first; 1 admits all. Each CPU counts its packets
    /// before all other conditions apply.
    pub sample: u32,
}

/// Properties of an opcode. Offsets are from the start of the BTH in bytes, 0 if there is no such header.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TapOpcode {
    /// Length of BTH and extension headers in bytes; 0 if the opcode is undefined.
    pub header_len: u8,
    /// Offset of the AETH.
    pub aeth: u8,
    /// Offset of the DETH.
    pub deth: u8,
    /// Whether the conditions admit this opcode.
    pub is_wanted: bool,
    /// Whether it is the congestion notification packet.
    pub is_cnp: bool,
}

impl TapOpcode {
    const HEADER_LEN: i16 = 0;
    const AETH: i16 = 1;
    const DETH: i16 = 2;
    const FLAGS: i16 = 3;
    const WANTED: i32 = 1;
    const CNP: i32 = 2;

    fn to_bytes(self) -> [u8; 4] {
        let flags = i32::from(self.is_wanted) * Self::WANTED + i32::from(self.is_cnp) * Self::CNP;
        [self.header_len, self.aeth, self.deth, flags as u8]
    }
}

/// Maximum number of queue pairs in the table, peers included.
const QPS_MAX: u32 = 1 << 16;
/// Maximum number of connection requests that are remembered until the reply.
const ASKED_MAX: u32 = 1 << 13;
/// Lengths of a BTH and an ICRC, in bytes.
const BTH_LEN: i32 = 12;
const ICRC_LEN: i32 = 4;
/// The highest AETH syndrome that is no NAK (IBA 9.7.5.2).
const ACK_MAX: i32 = 0x1f;
/// QP 1 receives management datagrams (IBA 13.5.1).
const GSI: i32 = 1;
/// Offsets in a CM packet from the start of the BTH: attribute id, message, fields of messages (IBA 12.6).
const ATTRIBUTE: i32 = 12 + 8 + 16;
const MESSAGE: i32 = 12 + 8 + 24;
const CONNECT_REQUEST: u16 = 0x0010;
const CONNECT_REPLY: u16 = 0x0013;
const LOCAL_ID: i32 = MESSAGE;
const REMOTE_ID: i32 = MESSAGE + 4;
const REQUEST_QPN: i32 = MESSAGE + 32;
const REPLY_QPN: i32 = MESSAGE + 12;

/// Stack offsets: BTH, ECN, payload length by IP and UDP, both addresses, a field, two queue pairs, and an
/// address with a communication id.
const BTH: i16 = -120;
const ECN: i16 = -128;
const LEN: i16 = -136;
const SRC: i16 = -152;
const DST: i16 = -168;
const FIELD: i16 = -176;
const ASKER: i16 = -184;
const ANSWERER: i16 = -192;
const ASKED: i16 = -216;

/// Maps of a program that selects by queue pair.
#[derive(Clone, Copy)]
struct QueuePairs {
    wanted: MapRef,
    asked: MapRef,
}

impl Emit<'_> {
    /// Emits code that saves the fields of the IP header that the conditions need.
    pub(super) fn keep_ip(&mut self, is_v4: bool) {
        let Some(filter) = &self.tap.filter else { return };
        let asm = &mut self.asm;
        if filter.congestion {
            asm.load(Size::B, Reg::R1, Reg::R10, IP + 1);
            if !is_v4 {
                asm.rsh(Reg::R1, 4);
            }
            asm.and(Reg::R1, 3).store(Size::Dw, Reg::R10, ECN, Reg::R1);
        }
        if filter.errors {
            let (len, headers) = if is_v4 { (IP + 2, IPV4_LEN + UDP_LEN) } else { (IP + 4, UDP_LEN) };
            asm.load(Size::H, Reg::R1, Reg::R10, len).to_be(Size::H, Reg::R1).add(Reg::R1, -headers);
            asm.store(Size::Dw, Reg::R10, LEN, Reg::R1);
        }
        if filter.by_queue_pair && is_v4 {
            for (from, to) in [(IP + 12, SRC), (IP + 16, DST)] {
                asm.load(Size::W, Reg::R1, Reg::R10, from).store(Size::Dw, Reg::R10, to, Reg::R1);
                asm.store(Size::Dw, Reg::R10, to + 8, 0);
            }
        } else if filter.by_queue_pair {
            for (from, to) in [(IP + 8, SRC), (IP + 16, SRC + 8), (IP + 24, DST), (IP + 32, DST + 8)] {
                asm.load(Size::Dw, Reg::R1, Reg::R10, from).store(Size::Dw, Reg::R10, to, Reg::R1);
            }
        }
    }

    /// Emits code that continues if a packet of the buffer is admitted, and jumps to `next` otherwise.
    pub(super) fn choose(&mut self, filter: &TapConditions, state: MapRef, next: Label) {
        let opcodes = self.asm.map(opcodes(filter));
        let queue_pairs = filter.by_queue_pair.then(|| QueuePairs {
            wanted: self.asm.map(MapDef::new(TAP_QPS, MapKind::Hash, 4, 4, QPS_MAX)),
            asked: self.asm.map(MapDef::new("tap_asked", MapKind::LruHash, 20, 4, ASKED_MAX)),
        });
        if filter.errors {
            // The shorter of the lengths that IP and UDP state.
            let asm = &mut self.asm;
            let shorter = asm.label();
            asm.load(Size::H, Reg::R1, Reg::R10, UDP + 4).to_be(Size::H, Reg::R1).add(Reg::R1, -UDP_LEN);
            asm.load(Size::Dw, Reg::R2, Reg::R10, LEN).branch(Cond::SGe, Reg::R1, Reg::R2, shorter);
            asm.store(Size::Dw, Reg::R10, LEN, Reg::R1).bind(shorter);
        }
        self.look_up_state(state, next);
        self.asm.store(Size::Dw, Reg::R10, STATE, Reg::R0).store(Size::Dw, Reg::R0, state::WANTED, 0);
        if filter.sample > 1 {
            self.packets();
            let asm = &mut self.asm;
            asm.load(Size::Dw, Reg::R1, Reg::R0, state::COUNTED).store(Size::Dw, Reg::R10, NUMBER, Reg::R1);
            asm.add(Reg::R1, Reg::R2).store(Size::Dw, Reg::R0, state::COUNTED, Reg::R1);
        }
        // R8: offset of the packet in the buffer. R9: number of the packet in the buffer.
        let (again, wanted, not, done) =
            (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.load(Size::Dw, Reg::R8, Reg::R10, OUTER).mov(Reg::R9, 0).bind(again);
        self.packet(filter, opcodes, queue_pairs, wanted, not);
        let asm = &mut self.asm;
        asm.bind(wanted).load(Size::Dw, Reg::R1, Reg::R10, STATE);
        asm.load(Size::Dw, Reg::R2, Reg::R1, state::WANTED).add(Reg::R2, 1).store(
            Size::Dw,
            Reg::R1,
            state::WANTED,
            Reg::R2,
        );
        asm.bind(not).load(Size::Dw, Reg::R1, Reg::R10, SEGMENT).branch(Cond::Eq, Reg::R1, 0, done);
        asm.add(Reg::R8, Reg::R1).add(Reg::R9, 1).load(Size::Dw, Reg::R1, Reg::R10, BUFFER_LEN);
        asm.branch(Cond::Le, Reg::R1, Reg::R8, done).branch(Cond::Lt, Reg::R9, SEGMENTS_MAX, again);
        asm.bind(done).load(Size::Dw, Reg::R1, Reg::R10, STATE);
        asm.load(Size::Dw, Reg::R1, Reg::R1, state::WANTED).branch(Cond::Eq, Reg::R1, 0, next);
        // The sizes are loaded again. Otherwise the kernel's verifier would check the following code once for
        // every set of bounds that it derived in an iteration of this loop.
        self.load_sizes();
    }

    /// Emits code that continues at `wanted`, which is bound next, or jumps to `not`. R7: properties of the
    /// opcode.
    fn packet(
        &mut self,
        filter: &TapConditions,
        opcodes: MapRef,
        queue_pairs: Option<QueuePairs>,
        wanted: Label,
        not: Label,
    ) {
        if let Some(sample) = i32::try_from(filter.sample).ok().filter(|sample| *sample > 1) {
            let asm = &mut self.asm;
            asm.load(Size::Dw, Reg::R1, Reg::R10, NUMBER).add(Reg::R1, Reg::R9);
            asm.alu(AluOp::Mod, Reg::R1, sample).branch(Cond::Ne, Reg::R1, 0, not);
        }
        let by_opcode = filter.opcodes.iter().any(|opcode| !opcode.is_wanted);
        let by_bth = by_opcode || filter.psns.is_some() || filter.naks || queue_pairs.is_some();
        if !by_bth && !filter.congestion && !filter.errors {
            return;
        }
        let (there, short) = (self.asm.label(), self.asm.label());
        self.load_field(0, BTH, BTH_LEN, short);
        self.asm.jump(there).bind(short);
        if by_bth {
            self.asm.jump(not);
        } else {
            // A packet without a whole BTH is admitted by a router's mark, or because it is malformed.
            if filter.congestion {
                let asm = &mut self.asm;
                asm.load(Size::Dw, Reg::R1, Reg::R10, ECN).branch(Cond::Ne, Reg::R1, 3, not);
            }
            self.asm.jump(wanted);
        }
        let asm = &mut self.asm;
        asm.bind(there).load_map_value(Reg::R7, opcodes, 0).load(Size::B, Reg::R1, Reg::R10, BTH);
        asm.alu(AluOp::Lsh, Reg::R1, 2).add(Reg::R7, Reg::R1);
        if by_opcode {
            asm.load(Size::B, Reg::R1, Reg::R7, TapOpcode::FLAGS).and(Reg::R1, TapOpcode::WANTED);
            asm.branch(Cond::Eq, Reg::R1, 0, not);
        }
        if let Some((first, last)) = filter.psns {
            let width = last.wrapping_sub(first) & 0xff_ffff;
            asm.load(Size::W, Reg::R1, Reg::R10, BTH + 8).to_be(Size::W, Reg::R1);
            asm.add(Reg::R1, -((first & 0xff_ffff) as i32)).and(Reg::R1, 0xff_ffff);
            asm.branch(Cond::Gt, Reg::R1, width as i32, not);
        }
        if filter.congestion {
            let marked = asm.label();
            asm.load(Size::Dw, Reg::R1, Reg::R10, ECN).branch(Cond::Eq, Reg::R1, 3, marked);
            asm.load(Size::B, Reg::R1, Reg::R7, TapOpcode::FLAGS).and(Reg::R1, TapOpcode::CNP);
            asm.branch(Cond::Eq, Reg::R1, 0, not).bind(marked);
        }
        if filter.naks {
            self.refuses(not);
        }
        if filter.errors {
            let wrong = self.asm.label();
            self.is_malformed(wrong);
            self.dest_qp();
            self.asm.branch(Cond::Eq, Reg::R1, GSI, wrong);
            self.refuses(not);
            self.asm.bind(wrong);
        }
        if let Some(maps) = queue_pairs {
            self.queue_pair(maps, not);
        }
    }

    /// Emits code that copies bytes at a constant offset of the packet to the stack, or jumps to `fails` if
    /// they are missing.
    fn load_field(&mut self, offset: i32, to: i16, len: i32, fails: Label) {
        self.asm.mov(Reg::R2, Reg::R8).add(Reg::R2, offset);
        self.load_from_r2(to, len, fails);
    }

    /// The same with the offset in R2, to `FIELD`.
    fn load_at(&mut self, len: i32, fails: Label) {
        self.asm.add(Reg::R2, Reg::R8);
        self.load_from_r2(FIELD, len, fails);
    }

    /// Emits code that sets R1 to the destination QPN.
    fn dest_qp(&mut self) {
        let asm = &mut self.asm;
        asm.load(Size::W, Reg::R1, Reg::R10, BTH + 4).to_be(Size::W, Reg::R1).and(Reg::R1, 0xff_ffff);
    }

    /// Emits code that jumps to `not` unless the packet is a NAK.
    fn refuses(&mut self, not: Label) {
        self.asm.load(Size::B, Reg::R2, Reg::R7, TapOpcode::AETH).branch(Cond::Eq, Reg::R2, 0, not);
        self.load_at(1, not);
        self.asm.load(Size::B, Reg::R1, Reg::R10, FIELD).branch(Cond::Le, Reg::R1, ACK_MAX, not);
    }

    /// Emits code that jumps to `wrong` if the packet is malformed.
    fn is_malformed(&mut self, wrong: Label) {
        let asm = &mut self.asm;
        let (single, known) = (asm.label(), asm.label());
        asm.load(Size::B, Reg::R1, Reg::R7, TapOpcode::HEADER_LEN).branch(Cond::Eq, Reg::R1, 0, wrong);
        // The version is in the low four bits, the pad count above it.
        asm.load(Size::B, Reg::R2, Reg::R10, BTH + 1).branch(Cond::Set, Reg::R2, 0x0f, wrong);
        asm.rsh(Reg::R2, 4).and(Reg::R2, 3).add(Reg::R1, Reg::R2).add(Reg::R1, ICRC_LEN);
        asm.load(Size::Dw, Reg::R2, Reg::R10, SEGMENT).branch(Cond::Eq, Reg::R2, 0, single);
        asm.load(Size::Dw, Reg::R3, Reg::R10, BUFFER_LEN).alu(AluOp::Sub, Reg::R3, Reg::R8);
        asm.branch(Cond::Le, Reg::R2, Reg::R3, known).mov(Reg::R2, Reg::R3).jump(known);
        asm.bind(single).load(Size::Dw, Reg::R2, Reg::R10, LEN);
        asm.bind(known).branch(Cond::SGt, Reg::R1, Reg::R2, wrong);
    }

    /// Emits code that jumps to `not` unless a wanted queue pair sends or receives the packet. It also learns
    /// new connections.
    fn queue_pair(&mut self, maps: QueuePairs, not: Label) {
        let (ours, connection) = (self.asm.label(), self.asm.label());
        self.dest_qp();
        self.asm.branch(Cond::Eq, Reg::R1, GSI, connection).store(Size::Dw, Reg::R10, FIELD, Reg::R1);
        self.look_up(maps.wanted, FIELD);
        self.asm.branch(Cond::Ne, Reg::R0, 0, ours);
        self.asm.load(Size::B, Reg::R2, Reg::R7, TapOpcode::DETH).branch(Cond::Eq, Reg::R2, 0, not);
        // The source QPN follows the Q_Key.
        self.asm.add(Reg::R2, 4);
        self.load_at(4, not);
        let asm = &mut self.asm;
        asm.load(Size::W, Reg::R1, Reg::R10, FIELD).to_be(Size::W, Reg::R1).and(Reg::R1, 0xff_ffff);
        asm.store(Size::Dw, Reg::R10, FIELD, Reg::R1);
        self.look_up(maps.wanted, FIELD);
        self.asm.branch(Cond::Eq, Reg::R0, 0, not).jump(ours).bind(connection);
        self.learn(maps, ours);
        self.asm.bind(ours);
    }

    /// Emits code that remembers connection requests. If one end is wanted, the reply adds the QPN of the
    /// other end.
    fn learn(&mut self, maps: QueuePairs, ours: Label) {
        let (request, both) = (self.asm.label(), self.asm.label());
        self.load_field(ATTRIBUTE, FIELD, 2, ours);
        self.asm.load(Size::H, Reg::R1, Reg::R10, FIELD);
        self.asm.branch(Cond::Eq, Reg::R1, net16(CONNECT_REQUEST), request);
        self.asm.branch(Cond::Ne, Reg::R1, net16(CONNECT_REPLY), ours);
        self.load_asked(DST, REMOTE_ID, ours);
        self.look_up(maps.asked, ASKED);
        self.asm.branch(Cond::Eq, Reg::R0, 0, ours).load(Size::W, Reg::R1, Reg::R0, 0);
        self.asm.store(Size::Dw, Reg::R10, ASKER, Reg::R1);
        self.load_qpn(REPLY_QPN, ANSWERER, ours);
        self.look_up(maps.wanted, ASKER);
        self.asm.branch(Cond::Ne, Reg::R0, 0, both);
        self.look_up(maps.wanted, ANSWERER);
        self.asm.branch(Cond::Eq, Reg::R0, 0, ours).bind(both).store(Size::Dw, Reg::R10, FIELD, 1);
        self.update(maps.wanted, ASKER, FIELD);
        self.update(maps.wanted, ANSWERER, FIELD);
        self.asm.jump(ours).bind(request);
        self.load_asked(SRC, LOCAL_ID, ours);
        self.load_qpn(REQUEST_QPN, ASKER, ours);
        self.update(maps.asked, ASKED, ASKER);
    }

    /// Emits code that loads an address and the communication id that this host assigned.
    fn load_asked(&mut self, address: i16, id: i32, fails: Label) {
        for half in [0, 8] {
            self.asm.load(Size::Dw, Reg::R1, Reg::R10, address + half);
            self.asm.store(Size::Dw, Reg::R10, ASKED + half, Reg::R1);
        }
        self.load_field(id, ASKED + 16, 4, fails);
    }

    /// Emits code that loads a QPN, the first 24 bits of a field.
    fn load_qpn(&mut self, offset: i32, to: i16, fails: Label) {
        self.load_field(offset, FIELD, 4, fails);
        self.asm.load(Size::W, Reg::R1, Reg::R10, FIELD).to_be(Size::W, Reg::R1).rsh(Reg::R1, 8);
        self.asm.store(Size::Dw, Reg::R10, to, Reg::R1);
    }

    fn look_up(&mut self, map: MapRef, key: i16) {
        let asm = &mut self.asm;
        asm.load_map(Reg::R1, map).mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(key));
        asm.call(Helper::MapLookupElem);
    }

    fn update(&mut self, map: MapRef, key: i16, value: i16) {
        let asm = &mut self.asm;
        asm.load_map(Reg::R1, map).mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(key));
        asm.mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(value)).mov(Reg::R4, 0).call(Helper::MapUpdateElem);
    }
}

/// Returns the table of opcodes, four bytes each.
fn opcodes(filter: &TapConditions) -> MapDef {
    let initial = filter.opcodes.iter().flat_map(|opcode| opcode.to_bytes()).collect();
    let flags = MapDef::RDONLY_PROG;
    MapDef { initial, flags, frozen: true, ..MapDef::array("tap_opcodes", 4 * 256, 1) }
}
