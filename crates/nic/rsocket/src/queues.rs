//! The queue pair of an rsocket, with its completion queue and channel.

use std::io;

use transport::{Access, QpCap, QpType};

use roxie::verbs::{Buffer, CompChannel, Context, Cq, Pd, Qp, QpInitAttr};
use sys::PollFd;

/// A queue pair that completes every work request on a completion queue of its own.
pub(super) struct Queues {
    pub(super) qp: Qp,
    pub(super) cq: Cq,
    pub(super) channel: CompChannel,
    pub(super) pd: Pd,
}

impl Queues {
    /// Creates a queue pair in RESET.
    pub(super) fn new(context: &Context, ty: QpType, cap: QpCap) -> io::Result<Self> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let entries = cap.max_send_wr + cap.max_recv_wr;
        let cq = context.create_cq(entries, Some(&channel), 0)?;
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInitAttr { ty, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let qp = pd.create_qp(&init)?;
        Ok(Self { qp, cq, channel, pd })
    }

    /// Returns the device.
    pub(super) fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Allocates and registers memory for the queue pair.
    pub(super) fn alloc(&self, len: usize, access: Access) -> io::Result<Buffer> {
        self.pd.alloc_buffer(len, access).map_err(io::Error::from)
    }

    /// Requests an event at the next completion; returns the descriptor that becomes readable then.
    pub(super) fn arm(&self) -> PollFd {
        self.channel.discard_events();
        self.cq.req_notify(false);
        PollFd::readable(self.channel.fd())
    }
}
