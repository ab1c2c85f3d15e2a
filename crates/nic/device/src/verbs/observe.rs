//! What an observer of the application reads about its queues (`roxie check`): nothing here changes them.

use std::sync::Arc;

use transport::Refused;

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

    /// Returns the last request or datagram of a peer that was refused.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        self.engine().lock().tables.by_qpn(self.qpn())?.qp.refused()
    }
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
