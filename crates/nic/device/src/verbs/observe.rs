//! What an observer of the application reads about its queues (`roxie check`): nothing here changes them.

use std::sync::Arc;

use wire::{QKey, Qpn};

use super::{Cq, Qp};
use crate::status::QpStatus;

impl Qp {
    /// Returns state, attributes, packets in flight and counters.
    #[must_use]
    pub fn status(&self) -> Option<QpStatus> {
        let engine = self.engine();
        let mut core = engine.lock();
        let gids = Arc::clone(&core.tables.gids);
        let entry = core.tables.by_qpn(self.qpn())?;
        Some(QpStatus::of(entry, &gids, engine.now()))
    }

    /// Returns the last datagram that was dropped because of its Q_Key.
    #[must_use]
    pub fn refused_q_key(&self) -> Option<RefusedQKey> {
        let engine = self.engine();
        let mut core = engine.lock();
        let qp = &core.tables.by_qpn(self.qpn())?.qp;
        let (theirs, sender) = qp.refused_q_key()?;
        Some(RefusedQKey { theirs, sender, ours: qp.attr().q_key })
    }
}

/// A datagram that a queue pair dropped because of its Q_Key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RefusedQKey {
    /// Its Q_Key.
    pub theirs: QKey,
    /// The queue pair that sent it.
    pub sender: Qpn,
    /// The Q_Key of the queue pair.
    pub ours: QKey,
}

impl Cq {
    /// Returns the number of completions that the application has not polled.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue().waiting()
    }

    /// True if the next completion, or the next solicited one, raises a channel event.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.queue().is_armed()
    }

    /// True if the next solicited completion raises a channel event, and others do not.
    #[must_use]
    pub fn is_armed_for_solicited(&self) -> bool {
        self.queue().is_armed_for_solicited()
    }

    /// True if a completion was lost because the queue was full.
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.queue().has_overflowed()
    }
}
