//! The types of [the crate](crate) for tokio.
//!
//! They must be created inside a runtime with I/O enabled; otherwise tokio panics, as for its own sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::reactor::{Reactor, name_types};

/// The reactor of the current tokio runtime.
#[derive(Clone, Copy, Debug)]
pub enum Tokio {}

name_types!(Tokio);

impl Reactor for Tokio {
    type Source = AsyncFd<OwnedFd>;

    // The safe constructor is deprecated because of descriptors that do not own their file; `OwnedFd` does.
    #[allow(deprecated)]
    fn register(fd: OwnedFd) -> io::Result<Self::Source> {
        AsyncFd::with_interest(fd, Interest::READABLE)
    }

    fn poll_readable(source: &Self::Source, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(source.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let unfilled = buf.initialize_unfilled();
        let received = ready!(self.poll_receive(cx, &mut [IoSliceMut::new(unfilled)]))?;
        buf.advance(received);
        Poll::Ready(Ok(()))
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

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Ready at once: written bytes are posted.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(cx)
    }
}
