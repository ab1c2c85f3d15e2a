//! One end of the connection under test: queue pair, completion queues, memory, and a time limit for
//! completions.

use std::time::{Duration, Instant};

use roxie::verbs::{Buffer, Context, Cq, Pd, Qp, QpInitAttr};
use serde::Serialize;
use serde::de::DeserializeOwned;
use transport::{Access, QpCap, QpType, RecvWr, SendFlags, SendWr, Sge, Wc, WcStatus, WrOp};
use wire::Rkey;

use super::order::{self, Answer, Order};
use crate::failure::{During, Failure, Outcome};

/// Largest message, in bytes.
pub(super) const MESSAGE_MAX: usize = 1 << 20;
/// Guard bytes before and after the target; no operation may write them.
pub(super) const GUARD: usize = 4096;
/// Receives kept posted while many messages arrive.
pub(super) const SLOTS: usize = 128;
/// Size of such a message, in bytes.
pub(super) const SLOT_LEN: usize = 64 << 10;
/// Sends that may be outstanding.
pub(super) const SENDS_MAX: u32 = 1024;

/// Offset in the inbox where orders arrive, behind the slots.
const ORDERS_IN: usize = SLOTS * SLOT_LEN;
/// Offset in the outbox where orders are sent from, behind the largest message.
const ORDERS_OUT: usize = MESSAGE_MAX + GUARD;
/// Offset in the target of the 64-bit word for atomic operations.
const WORD: usize = MESSAGE_MAX + 2 * GUARD;
/// The demo fails if no completion arrives for this long. The server's wait for an order has no limit:
/// atomics reach its memory without a completion there, and on a slow CPU a thousand of them take longer.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);
/// Empty polls between two reads of the clock; the thread yields its CPU after each such series.
const POLLS: u32 = 1 << 12;

/// Address and key of the peer's target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Remote {
    pub(super) addr: u64,
    pub(super) r_key: Rkey,
}

/// One end of the connection.
pub(super) struct Endpoint {
    pub(super) qp: Qp,
    sends: Cq,
    receives: Cq,
    /// Memory of receives; the `wr_id` of a receive is its offset here.
    pub(super) inbox: Buffer,
    /// Memory that SENDs and WRITEs are sent from, and that READs and atomics return data to.
    pub(super) outbox: Buffer,
    /// Memory that the peer may read, write and do atomics on.
    pub(super) target: Buffer,
}

impl Endpoint {
    /// Creates a queue pair and its memory; it is not connected yet.
    pub(super) fn new(context: &Context, pd: &Pd) -> Outcome<Self> {
        let cq = || context.create_cq(2 * SENDS_MAX, None, 0).during("creating a completion queue");
        let (sends, receives) = (cq()?, cq()?);
        let cap = QpCap {
            max_send_wr: SENDS_MAX,
            max_recv_wr: 2 * SLOTS as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let init = QpInitAttr {
            ty: QpType::Rc,
            send_cq: sends.clone(),
            recv_cq: receives.clone(),
            srq: None,
            cap,
            sq_sig_all: false,
            cookie: 0,
        };
        let qp = pd.create_qp(&init).during("creating a queue pair")?;
        let local = Access::LOCAL_WRITE;
        let remote = local | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let alloc = |len, access| pd.alloc_buffer(len, access).during("registering memory");
        Ok(Self {
            qp,
            sends,
            receives,
            inbox: alloc(ORDERS_IN + order::LEN, local)?,
            outbox: alloc(ORDERS_OUT + order::LEN, local)?,
            target: alloc(WORD + 8, remote)?,
        })
    }

    /// What the peer needs to access the target, as private data of the connection.
    pub(super) fn invitation(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.target.addr().to_le_bytes());
        bytes[8..].copy_from_slice(&self.target.rkey().0.to_le_bytes());
        bytes
    }

    /// Posts a receive of up to `len` bytes at `offset` of the inbox.
    pub(super) fn post_recv(&self, offset: usize, len: usize) -> Outcome {
        let sg_list = [self.inbox.sge(offset, len)];
        self.qp.post_recv(&RecvWr { wr_id: offset as u64, sg_list: &sg_list }).during("posting a receive")
    }

    /// Posts a receive for the next order or reply.
    pub(super) fn expect_order(&self) -> Outcome {
        self.post_recv(ORDERS_IN, order::LEN)
    }

    /// Posts one work request.
    pub(super) fn post(&self, what: &str, op: WrOp, sg_list: &[Sge], flags: SendFlags) -> Outcome {
        self.qp.post_send(&SendWr { wr_id: 0, op, sg_list, flags, dest: None }).during(what)
    }

    /// Posts one signaled work request and waits for its completion.
    pub(super) fn perform(&self, what: &str, op: WrOp, sg_list: &[Sge]) -> Outcome<Wc> {
        self.post(what, op, sg_list, SendFlags::SIGNALED)?;
        self.sent(what)
    }

    /// Waits for the next completion of a send.
    pub(super) fn sent(&self, what: &str) -> Outcome<Wc> {
        wait(&self.sends, what, Some(COMPLETION_TIMEOUT))
    }

    /// The next completion of a send, if there is one.
    pub(super) fn try_sent(&self, what: &str) -> Outcome<Option<Wc>> {
        self.sends.poll_one().map(|wc| judge(wc, what)).transpose()
    }

    /// Waits for the next completion of a receive.
    pub(super) fn received(&self, what: &str) -> Outcome<Wc> {
        wait(&self.receives, what, Some(COMPLETION_TIMEOUT))
    }

    /// Sends an order and waits for the reply.
    pub(super) fn ask(&self, order: Order) -> Outcome<Answer> {
        self.expect_order()?;
        self.tell(&order)?;
        self.answer()
    }

    /// Waits for the reply to an order that was sent before.
    pub(super) fn answer(&self) -> Outcome<Answer> {
        let what = "waiting for an answer";
        self.contents(what, self.received(what)?)
    }

    /// Waits for an order, as long as the client process lives: the parent ends the server with it.
    pub(super) fn order(&self) -> Outcome<Order> {
        let what = "waiting for an order";
        self.contents(what, wait(&self.receives, what, None)?)
    }

    /// Sends a reply.
    pub(super) fn reply(&self, answer: Answer) -> Outcome {
        self.tell(&answer)
    }

    /// Sends back the payload of a completed receive.
    pub(super) fn echo(&self, offset: usize, len: usize) -> Outcome {
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        self.post("echo", WrOp::Send, &[self.inbox.sge(offset, len)], flags)?;
        self.try_sent("echo").map(drop)
    }

    fn tell(&self, message: &impl Serialize) -> Outcome {
        self.outbox.write(ORDERS_OUT, &order::encode(message));
        let sg_list = [self.outbox.sge(ORDERS_OUT, order::LEN)];
        self.perform("SEND of a message", WrOp::Send, &sg_list).map(drop)
    }

    /// A received order or answer.
    fn contents<T: DeserializeOwned>(&self, what: &str, wc: Wc) -> Outcome<T> {
        let mut bytes = [0; order::LEN];
        self.inbox.read(wc.wr_id as usize, &mut bytes);
        let message = order::decode(&bytes).filter(|_| wc.byte_len as usize == order::LEN);
        message.ok_or_else(|| Failure::new(format!("{what}: {} bytes that make no sense", wc.byte_len)))
    }

    /// The word for atomics at this end.
    pub(super) fn word(&self) -> u64 {
        let mut bytes = [0; 8];
        self.target.read(WORD, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Sets the word for atomics.
    pub(super) fn set_word(&self, value: u64) {
        self.target.write(WORD, &value.to_le_bytes());
    }
}

impl Remote {
    /// Parses private data made by [`Endpoint::invitation`].
    pub(super) fn decode(private: &[u8]) -> Outcome<Self> {
        let (Some(addr), Some(key)) = (private.first_chunk::<8>(), private.get(8..12)) else {
            return Err(Failure::new(format!(
                "{} bytes of private data came with the connection",
                private.len()
            )));
        };
        let key = [key[0], key[1], key[2], key[3]];
        Ok(Self { addr: u64::from_le_bytes(*addr), r_key: Rkey(u32::from_le_bytes(key)) })
    }

    /// Address of `offset` in the part of the target between the guards.
    pub(super) fn at(self, offset: usize) -> u64 {
        self.addr + (GUARD + offset) as u64
    }

    /// Address of the word for atomics.
    pub(super) fn word(self) -> u64 {
        self.addr + WORD as u64
    }
}

fn wait(cq: &Cq, what: &str, limit: Option<Duration>) -> Outcome<Wc> {
    let mut since: Option<Instant> = None;
    loop {
        for _ in 0..POLLS {
            if let Some(wc) = cq.poll_one() {
                return judge(wc, what);
            }
        }
        if let Some(limit) = limit
            && since.get_or_insert_with(Instant::now).elapsed() > limit
        {
            return Err(Failure::new(format!("{what}: no completion in {} s", limit.as_secs())));
        }
        std::thread::yield_now();
    }
}

fn judge(wc: Wc, what: &str) -> Outcome<Wc> {
    let why = match wc.status {
        WcStatus::Success => return Ok(wc),
        WcStatus::RetryExcErr => "the other process does not answer",
        WcStatus::RnrRetryExcErr => "the other process posted no receive",
        WcStatus::RemAccessErr => "the other process does not allow it",
        WcStatus::WrFlushErr => "the connection ended",
        _ => "failed",
    };
    Err(Failure::new(format!("{what}: {why} ({:?})", wc.status)))
}
