//! Messages between the processes that share an XRC domain: one record per SOCK_SEQPACKET message,
//! little-endian, a fixed head and then the bytes of DATA.
//!
//! ```text
//! 0   magic "RXX1"        u32 kind
//! 8   u64 device          u64 inode of the file that stands for the domain
//! 24  u32 number of the shared receive queue
//! 28  u32 solicited
//! 32  u64 id of the lent receive
//! 40  u64 value: bytes that fit (LEND), offset (DATA)
//! 48  u32 status          u32 opcode              u32 bytes received
//! 60  4 bytes of immediate data                   u32 flags
//! 68  u32 QPN             u32 QPN of the sender
//! ```

use transport::{Wc, WcOpcode, WcStatus};

use crate::verbs::FileId;

/// Length of the head.
pub(super) const HEAD_LEN: usize = 76;
/// Most bytes in one DATA: it fits the socket's send buffer several times.
pub(super) const DATA_MAX: usize = 32 * 1024;

const MAGIC: [u8; 4] = *b"RXX1";

/// What a record says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Requests a receive of a shared receive queue of the other process.
    Ask = 1,
    /// Lends one.
    Lend = 2,
    /// The shared receive queue is empty.
    NotReady = 3,
    /// There is no such shared receive queue in this domain.
    Refuse = 4,
    /// Bytes of the message in a lent receive.
    Data = 5,
    /// Completes a lent receive.
    Done = 6,
    /// Returns a lent receive that no message has taken.
    GiveBack = 7,
}

/// A record without the bytes of DATA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) file: FileId,
    pub(super) srqn: u32,
    pub(super) id: u64,
    pub(super) value: u64,
    pub(super) wc: Wc,
    pub(super) solicited: bool,
}

impl Record {
    pub(super) fn new(kind: Kind, file: FileId, srqn: u32, id: u64) -> Self {
        Self { kind, file, srqn, id, value: 0, wc: Wc::default(), solicited: false }
    }

    /// Returns the record with the bytes of DATA, or `None` for bytes that are no record.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, data) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if head[..4] != MAGIC {
            return None;
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == word(4))?;
        let wc = Wc {
            status: status(word(48)),
            opcode: if word(52) == WcOpcode::RecvRdmaWithImm as u32 {
                WcOpcode::RecvRdmaWithImm
            } else {
                WcOpcode::Recv
            },
            byte_len: word(56),
            imm_data: [head[60], head[61], head[62], head[63]],
            wc_flags: word(64) & Wc::WITH_IMM,
            qp_num: word(68),
            src_qp: word(72),
            ..Wc::default()
        };
        let file = (long(8), long(16));
        let (srqn, id, value, solicited) = (word(24), long(32), long(40), word(28) != 0);
        (data.is_empty() || kind == Kind::Data)
            .then_some((Self { kind, file, srqn, id, value, wc, solicited }, data))
    }

    pub(super) fn emit(&self) -> [u8; HEAD_LEN] {
        let Wc { status, opcode, byte_len, imm_data, wc_flags, qp_num, src_qp, .. } = self.wc;
        let mut head = [0; HEAD_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            head[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&(self.kind as u32).to_le_bytes());
        put(&self.file.0.to_le_bytes());
        put(&self.file.1.to_le_bytes());
        put(&self.srqn.to_le_bytes());
        put(&u32::from(self.solicited).to_le_bytes());
        put(&self.id.to_le_bytes());
        put(&self.value.to_le_bytes());
        put(&(status as u32).to_le_bytes());
        put(&(opcode as u32).to_le_bytes());
        put(&byte_len.to_le_bytes());
        put(&imm_data);
        put(&wc_flags.to_le_bytes());
        put(&qp_num.to_le_bytes());
        put(&src_qp.to_le_bytes());
        head
    }
}

impl Kind {
    pub(super) const ALL: [Self; 7] =
        [Self::Ask, Self::Lend, Self::NotReady, Self::Refuse, Self::Data, Self::Done, Self::GiveBack];
}

/// The status of a receive, which the responder of the other process chose.
fn status(value: u32) -> WcStatus {
    use WcStatus::{LocAccessErr, LocLenErr, LocProtErr, LocQpOpErr, RemInvReqErr, Success, WrFlushErr};
    [Success, LocLenErr, LocQpOpErr, LocProtErr, WrFlushErr, LocAccessErr, RemInvReqErr]
        .into_iter()
        .find(|status| *status as u32 == value)
        .unwrap_or(WcStatus::GeneralErr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_parsed_as_it_was_emitted() {
        let wc = Wc {
            status: WcStatus::WrFlushErr,
            opcode: WcOpcode::RecvRdmaWithImm,
            byte_len: 77,
            imm_data: [1, 2, 3, 4],
            wc_flags: Wc::WITH_IMM,
            qp_num: 0x12_3456,
            src_qp: 0x65_4321,
            ..Wc::default()
        };
        for kind in Kind::ALL {
            let record = Record {
                value: u64::MAX - 1,
                wc,
                solicited: true,
                ..Record::new(kind, (3, 1 << 40), 0x07_0001, 1 << 33)
            };
            let bytes = record.emit();
            assert_eq!(Record::parse(&bytes), Some((record, &[][..])));
            let longer = [&bytes[..], b"data"].concat();
            let expected = (kind == Kind::Data).then_some((record, &b"data"[..]));
            assert_eq!(Record::parse(&longer), expected);
        }
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        let bytes = Record::new(Kind::Ask, (1, 2), 3, 4).emit();
        assert_eq!(Record::parse(&bytes[..HEAD_LEN - 1]), None);
        for (at, value) in [(0, b'x'), (4, 0), (4, 8), (5, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Record::parse(&wrong), None, "{at}");
        }
        let mut odd = bytes;
        odd[48] = 200;
        odd[52] = 1;
        let (record, _) = Record::parse(&odd).expect("a record");
        assert_eq!((record.wc.status, record.wc.opcode), (WcStatus::GeneralErr, WcOpcode::Recv));
    }
}
