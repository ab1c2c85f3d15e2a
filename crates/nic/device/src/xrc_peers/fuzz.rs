//! Fuzz target: records of borrowers that keep to no rule.

use std::collections::HashSet;
use std::sync::Arc;

use transport::{Access, Instant, PdId, RecvQueue, RecvWr, Sge};
use wire::Lkey;

use super::lent::{LentId, NotABorrower};
use super::record::{HEAD_LEN, Kind, Record};
use crate::cq::CompletionQueue;
use crate::engine::tables::Tables;
use crate::events::EventQueue;
use crate::gid::GidTable;
use crate::keys::Range;
use crate::mr::DmaMemory;
use crate::srqs::{SrqEntry, XrcScope, srqn};
use crate::verbs::FileId;

const SLOT: u16 = 3;
const DOMAIN: PdId = PdId(7);
const PD: PdId = PdId(1);
const FILE: FileId = (1, 2);
/// Receives of the queue.
const RECEIVES: usize = 4;
/// Bytes of a receive, and from one receive to the next.
const ROOM: usize = 48;
const STRIDE: usize = 64;
const NOW: Instant = Instant(5);

/// The owner of one shared receive queue, and what must be true of it.
struct Owner {
    tables: Tables,
    memory: DmaMemory,
    cq: Arc<CompletionQueue>,
    /// What was lent and not returned.
    lent: HashSet<LentId>,
    completed: usize,
    next_id: u64,
}

/// Runs one input: records of two connections, some of them whole ones and some drawn field by field.
pub fn check(bytes: &[u8]) {
    let mut owner = Owner::new();
    let mut rest = bytes;
    while let Some((&choice, after)) = rest.split_first() {
        let connection = u64::from(choice & 1);
        if choice & 0x40 == 0 {
            let (fields, after) = after.split_at(after.len().min(4));
            rest = after;
            let field = |at: usize| fields.get(at).copied().unwrap_or(0);
            let kind = Kind::ALL[usize::from(field(0)) % Kind::ALL.len()];
            let number = srqn(SLOT ^ u16::from(field(1) >> 7), u32::from(field(1) & 1));
            let offset = if field(3) > 250 { u64::MAX - 2 } else { u64::from(field(3)) };
            let id = owner.next_id.saturating_sub(u64::from(field(2) % 8));
            let record = Record { value: offset, ..Record::new(kind, FILE, number, id) };
            owner.handle(connection, &record, &[0xaa; 300][..usize::from(field(2))]);
        } else {
            let (raw, after) = after.split_at(after.len().min(HEAD_LEN + usize::from(choice >> 1 & 7)));
            rest = after;
            if let Some((record, data)) = Record::parse(raw) {
                assert_eq!(Record::parse(&record.emit()), Some((record, &[][..])));
                owner.handle(connection, &record, data);
            }
        }
        if choice == u8::MAX {
            owner.end(connection);
        }
    }
    (0..2).for_each(|connection| owner.end(connection));
    assert!(owner.lent.is_empty());
}

impl Owner {
    fn new() -> Self {
        let mut tables = Tables::new(SLOT, &Arc::new(GidTable::without_addresses()));
        let memory = DmaMemory::zeroed(RECEIVES * STRIDE).expect("memory");
        let range = Range { base: memory.addr(), len: memory.len() as u64, iova: memory.addr() };
        let lkey = Lkey(tables.mrs.register(PD, range, Access::LOCAL_WRITE).expect("space"));
        let mut queue = RecvQueue::new(RECEIVES as u32, 1, PD).expect("small");
        for at in 0..RECEIVES {
            let addr = memory.addr() + (at * STRIDE) as u64;
            let sg_list = &[Sge { addr, length: ROOM as u32, lkey }];
            queue.post(&RecvWr { wr_id: at as u64, sg_list }).expect("room");
        }
        let cq = CompletionQueue::new(RECEIVES as u32, None, 0, Arc::default(), &Arc::default(), 4);
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let xrc = Some(XrcScope { domain: DOMAIN, cq: Arc::clone(&cq) });
        tables.srqs.entries.push(Some(SrqEntry { queue, cookie: 0, events, xrc }));
        Self { tables, memory, cq, lent: HashSet::new(), completed: 0, next_id: 0 }
    }

    fn handle(&mut self, connection: u64, record: &Record, data: &[u8]) {
        self.next_id += 1;
        let next = (connection, self.next_id);
        let domain = (record.file == FILE).then_some(DOMAIN);
        let answer = self.tables.handle_borrower(NOW, next, record, data, domain);
        let is_answer = matches!(record.kind, Kind::Lend | Kind::NotReady | Kind::Refuse);
        assert_eq!(answer.is_err(), is_answer, "{:?}", record.kind);
        match (record.kind, answer) {
            (Kind::Ask, Ok(Some(answer))) => {
                assert_eq!((answer.id, answer.srqn, answer.file), (next.1, record.srqn, record.file));
                if answer.kind == Kind::Lend {
                    assert_eq!((domain, record.srqn), (Some(DOMAIN), srqn(SLOT, 0)));
                    assert_eq!(answer.value, ROOM as u64);
                    self.lent.insert(next);
                }
            }
            (Kind::Done | Kind::GiveBack, Ok(None)) => _ = self.lent.remove(&(connection, record.id)),
            (Kind::Data, Ok(None)) | (_, Err(NotABorrower)) => {}
            (kind, answer) => panic!("{kind:?} is answered with {answer:?}"),
        }
        self.check();
    }

    fn end(&mut self, connection: u64) {
        self.tables.take_back_all(NOW, connection);
        self.lent.retain(|lent| lent.0 != connection);
        self.check();
    }

    /// Each receive is in the queue, lent, or completed once; no byte beside them was written.
    fn check(&mut self) {
        while let Some(wc) = self.cq.pop_one() {
            assert!(wc.byte_len as usize <= ROOM && (wc.wr_id as usize) < RECEIVES);
            self.completed += 1;
        }
        let queued = self.tables.srqs.get(0).map_or(0, |entry| entry.queue.len() as usize);
        assert_eq!(queued + self.lent.len() + self.completed, RECEIVES);
        let mut bytes = vec![0; self.memory.len()];
        self.memory.read(0, &mut bytes);
        let beside = bytes.chunks(STRIDE).take(RECEIVES).all(|one| one[ROOM..].iter().all(|byte| *byte == 0));
        assert!(beside && bytes[RECEIVES * STRIDE..].iter().all(|byte| *byte == 0));
    }
}
