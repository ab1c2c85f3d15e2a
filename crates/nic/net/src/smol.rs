//! The types of [the crate](crate) for smol, and for every other executor: the reactor of async-io runs on a
//! thread of its own if no executor runs it.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_io::Async;
use futures_io::{AsyncRead, AsyncWrite};

use crate::reactor::{Reactor, name_types};

/// The reactor of async-io.
#[derive(Clone, Copy, Debug)]
pub enum Smol {}

name_types!(Smol);

impl Reactor for Smol {
    type Source = Async<OwnedFd>;

    fn register(fd: OwnedFd) -> io::Result<Self::Source> {
        // The device's own calls set O_NONBLOCK where it matters.
        Async::new_nonblocking(fd)
    }

    fn poll_readable(source: &Self::Source, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        source.poll_readable(cx)
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_receive(cx, &mut [IoSliceMut::new(buf)])
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_receive(cx, bufs)
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bufs)
    }

    /// Ready at once: written bytes are posted.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(cx)
    }
}
