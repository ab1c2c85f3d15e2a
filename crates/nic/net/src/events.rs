//! Events of the connection manager.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use crate::reactor::Reactor;
use crate::waiting::{Interest, Waiting};
use roxie::cm::{CmEvent, EventChannel};

/// An event channel with events to await. Create identifiers with [`channel`](Self::channel).
pub struct CmEvents<R: Reactor> {
    channel: EventChannel,
    waiting: Waiting<R>,
}

impl<R: Reactor> CmEvents<R> {
    /// Creates an empty channel.
    ///
    /// # Errors
    /// `EMFILE` if the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let channel = EventChannel::new()?;
        channel.set_nonblocking()?;
        let waiting = Waiting::new();
        waiting.watch(0, std::os::fd::AsFd::as_fd(&channel))?;
        Ok(Self { channel, waiting })
    }

    /// Returns the channel, for [`Id::new`](roxie::cm::Id::new). Its descriptor is non-blocking.
    #[must_use]
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// `EBADF` if the program has closed the descriptor.
    pub async fn next(&self) -> io::Result<CmEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`next`](Self::next).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<io::Result<CmEvent>> {
        self.waiting.poll(cx, Interest::Read, || self.channel.get_event(), || Ok(()))
    }
}
