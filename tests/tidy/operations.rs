//! The operations that queue pairs support: each one is posted at one end, and its packet given to the other.

use transport::{
    Access, AccessFault, AddressVector, AtomicOp, Dest, Instant, MAX_PACKET, Memory, PacketSource, PathMtu,
    PdId, Qp, QpAttr, QpAttrMask, QpCap, QpConfig, QpState, QpType, RecvQueue, RecvWr, ReorderBuffer,
    SendFlags, SendWr, Sge, SrqTable, UdDest, WrOp,
};
use wire::{
    Bth, ExtHeader, Feth, Gid, Lkey, OPCODES, OpcodeRow, Operation, Packet, Position, Qpn, Reth, Rkey,
    Service,
};

/// The columns of the table, with the queue pair types of requester and responder; roxie does not support RD.
const SERVICES: [(&str, Service, Option<[QpType; 2]>); 5] = [
    ("RC", Service::Rc, Some([QpType::Rc; 2])),
    ("UC", Service::Uc, Some([QpType::Uc; 2])),
    ("UD", Service::Ud, Some([QpType::Ud; 2])),
    ("XRC", Service::Xrc, Some([QpType::XrcIni, QpType::XrcTgt])),
    ("RD", Service::Rd, None),
];

/// The table: a row per operation, a column per service; empty where the specification has no such operation.
pub(crate) fn table() -> String {
    let names = SERVICES.map(|(name, ..)| format!(" {name} |")).concat();
    let mut text = format!("| operation |{names}\n|---|{}\n", "---|".repeat(SERVICES.len()));
    // RC has every operation of the other services, except the RESYNC of RD.
    for rc in requests(Service::Rc) {
        let name = rc.name.trim_start_matches("RC ").replace(" Only", "").replace(" Request", "");
        let cells = SERVICES.map(|(_, service, ends)| {
            match (requests(service).find(|row| row.operation == rc.operation), ends) {
                (None, _) => " |",
                (Some(_), None) => " decoded only |",
                (Some(row), Some(ends)) if has(row, ends) => " yes |",
                (Some(_), Some(_)) => " **no** |",
            }
        });
        text += &format!("| {name} |{}\n", cells.concat());
    }
    text
}

/// One row for each operation of a service: that of a message in one packet.
fn requests(service: Service) -> impl Iterator<Item = &'static OpcodeRow> {
    OPCODES.iter().flatten().filter(move |row| {
        row.service == service
            && row.is_request()
            && row.position == Position::Only
            && row.operation != Operation::Resync
    })
}

/// Whether queue pairs of these types support the operation, as requester and as responder.
fn has(row: &OpcodeRow, [sender, receiver]: [QpType; 2]) -> bool {
    let sends = request(row.operation).is_some_and(|op| sends(op, row, sender));
    assert_eq!(sends, serves(row, receiver), "{}: only one of requester and responder supports it", row.name);
    sends
}

fn request(operation: Operation) -> Option<WrOp> {
    let (remote_addr, r_key) = (0, Rkey(0));
    match operation {
        Operation::Send => Some(WrOp::Send),
        Operation::SendImm => Some(WrOp::SendImm([0; 4])),
        Operation::SendInv => Some(WrOp::SendInv(r_key)),
        Operation::Write => Some(WrOp::Write { remote_addr, r_key }),
        Operation::WriteImm => Some(WrOp::WriteImm { remote_addr, r_key, imm: [0; 4] }),
        Operation::ReadRequest => Some(WrOp::Read { remote_addr, r_key }),
        Operation::CompareSwap => Some(WrOp::CompareSwap { remote_addr, r_key, compare: 0, swap: 0 }),
        Operation::FetchAdd => Some(WrOp::FetchAdd { remote_addr, r_key, add: 0 }),
        Operation::AtomicWrite => Some(WrOp::AtomicWrite { remote_addr, r_key }),
        Operation::Flush => Some(WrOp::Flush { remote_addr, r_key, length: 0, placement: 1, selectivity: 0 }),
        Operation::Resync => None,
        Operation::ReadResponse | Operation::Ack | Operation::AtomicAck | Operation::Cnp => None,
    }
}

fn sends(op: WrOp, row: &OpcodeRow, ty: QpType) -> bool {
    let mut qp = queue_pair(ty);
    let words = matches!(op, WrOp::CompareSwap { .. } | WrOp::FetchAdd { .. } | WrOp::AtomicWrite { .. });
    let length = if words { 8 } else { 0 };
    let sg_list = [Sge { addr: 0, length, lkey: Lkey(0) }];
    let dest = match ty {
        QpType::Ud => Some(Dest::Ud(UdDest::default())),
        QpType::XrcIni => Some(Dest::Srq(0)),
        _ => None,
    };
    let wr = SendWr { wr_id: 0, op, sg_list: &sg_list, flags: SendFlags::SIGNALED, dest };
    if qp.post_send(&wr, &Anything).is_err() {
        return false;
    }
    let mut buf = [0; MAX_PACKET];
    let sent = qp.poll_transmit(Instant::ZERO, &Anything, usize::MAX, &mut buf);
    sent.is_some() && buf[0] == row.opcode.0
}

fn serves(row: &OpcodeRow, ty: QpType) -> bool {
    let mut qp = queue_pair(ty);
    let receive = RecvWr { wr_id: 0, sg_list: &[Sge { addr: 0, length: 64, lkey: Lkey(0) }] };
    let mut shared = RecvQueue::new(1, 1, PdId(0)).expect("within limits");
    if ty == QpType::XrcTgt { shared.post(&receive) } else { qp.post_recv(&receive) }.expect("room");
    let payload = if row.operation == Operation::AtomicWrite { 8 } else { 0 };
    let mut bytes = vec![0; row.header_len() + payload + 4];
    let header = bytes.first_chunk_mut().expect("a packet begins with a BTH");
    Bth { opcode: row.opcode, ..Bth::default() }.emit(header);
    if let Some(at) = row.offset(ExtHeader::Feth) {
        Feth { placement: Feth::GLOBAL_VISIBILITY, ..Feth::default() }.emit(place(&mut bytes, at));
    }
    if row.operation == Operation::AtomicWrite
        && let Some(at) = row.offset(ExtHeader::Reth)
    {
        Reth { dma_len: 8, ..Reth::default() }.emit(place(&mut bytes, at));
    }
    let packet = Packet::parse(&bytes).expect("the headers of its row");
    qp.handle_packet(
        Instant::ZERO,
        &packet,
        &PacketSource { src: PEER, ..PacketSource::default() },
        &Anything,
        EveryNumber(&mut shared),
        &mut ReorderBuffer::none(),
    )
    .is_ok()
}

/// One shared receive queue, found under every number.
struct EveryNumber<'a>(&'a mut RecvQueue);

impl SrqTable for EveryNumber<'_> {
    fn own(&mut self) -> Option<&mut RecvQueue> {
        None
    }

    fn xrc(&mut self, _: u32) -> Option<&mut RecvQueue> {
        Some(self.0)
    }
}

fn place<const N: usize>(bytes: &mut [u8], at: usize) -> &mut [u8; N] {
    bytes[at..].first_chunk_mut().expect("the headers of its row")
}

const PEER: Gid = Gid([1; 16]);

/// A queue pair in RTS with all remote access rights.
fn queue_pair(ty: QpType) -> Qp {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let pd = PdId(0);
    let (sq_sig_all, srq, max_path_mtu) = (false, false, PathMtu::M1024);
    let config =
        QpConfig { qpn: Qpn::new(2), ty, pd, cap, sq_sig_all, srq, max_path_mtu, equal_writes: false };
    let mut qp = Qp::new(config).expect("within limits");
    let attr = QpAttr {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL,
        av: AddressVector { dgid: PEER, ..AddressVector::default() },
        port_num: 1,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..QpAttr::default()
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let attr = QpAttr { state, ..attr.clone() };
        qp.modify(Instant::ZERO, &attr, QpAttrMask::required(ty, state)).expect("permitted");
    }
    qp
}

/// Memory that grants everything and holds zeros.
struct Anything;

type Done = Result<(), AccessFault>;

impl Memory for Anything {
    fn read_inline(&self, _: u64, _: &mut [u8]) -> Done {
        Ok(())
    }
    fn check_local(&self, _: PdId, _: Lkey, _: u64, _: u64, _: Access) -> Done {
        Ok(())
    }
    fn read_local(&self, _: PdId, _: Lkey, _: u64, _: &mut [u8]) -> Done {
        Ok(())
    }
    fn write_local(&self, _: PdId, _: Lkey, _: u64, _: &[u8]) -> Done {
        Ok(())
    }
    fn check_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: u64, _: Access) -> Done {
        Ok(())
    }
    fn read_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: &mut [u8]) -> Done {
        Ok(())
    }
    fn write_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: &[u8]) -> Done {
        Ok(())
    }
    fn atomic_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        Ok(0)
    }
    fn invalidate(&self, _: PdId, _: Qpn, _: Rkey) -> Done {
        Ok(())
    }
}
