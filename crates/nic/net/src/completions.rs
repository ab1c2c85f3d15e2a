//! Completions as a stream.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use transport::Wc;

use crate::reactor::Reactor;
use crate::waiting::{Interest, Waiting};

use roxie::verbs::{CompChannel, Context as Device, Cq};

/// A completion queue as a [`Stream`] of its completions, which never ends.
pub struct Completions<R: Reactor> {
    cq: Cq,
    channel: CompChannel,
    waiting: Waiting<R>,
}

impl<R: Reactor> Completions<R> {
    /// Creates a completion queue of at least `entries` entries.
    ///
    /// # Errors
    /// `EMFILE`; those of [`create_cq`](Device::create_cq).
    pub fn new(context: &Device, entries: u32) -> io::Result<Self> {
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(entries, Some(&channel), 0)?;
        let waiting = Waiting::new();
        waiting.watch(0, channel.as_fd())?;
        Ok(Self { cq, channel, waiting })
    }

    /// Returns the queue, for [`QpInitAttr`](roxie::verbs::QpInitAttr).
    #[must_use]
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Returns the oldest completion; waits for one.
    ///
    /// # Errors
    /// The reactor has ended.
    pub async fn next(&self) -> io::Result<Wc> {
        poll_fn(|cx| self.poll_completion(cx)).await
    }

    /// As [`next`](Self::next).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn poll_completion(&self, cx: &mut Context<'_>) -> Poll<io::Result<Wc>> {
        self.waiting.poll(
            cx,
            Interest::Read,
            || self.cq.poll_one().ok_or_else(|| io::ErrorKind::WouldBlock.into()),
            || {
                self.channel.discard_events();
                self.cq.req_notify(false);
                Ok(())
            },
        )
    }
}

impl<R: Reactor> Stream for Completions<R> {
    type Item = io::Result<Wc>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_completion(cx).map(Some)
    }
}
