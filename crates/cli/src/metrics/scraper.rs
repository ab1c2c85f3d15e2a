//! Reads the counters on a thread of its own, for all clients that wait at the time, and keeps the reply for
//! a moment.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use sys::EventFd;

use super::request::Status;

/// Reads the counters of the processes.
pub(super) type Scrape = Box<dyn FnMut() -> String + Send>;

/// The thread, and its last result.
pub(super) struct Scraper {
    orders: Sender<()>,
    results: Receiver<String>,
    /// Readable when there is a result.
    done: Arc<EventFd>,
    is_running: bool,
    latest: Option<(Instant, Reply)>,
    /// Age up to which a result is used again.
    fresh: Duration,
}

/// A reply; clients that get the same counters share its bytes.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) bytes: Arc<[u8]>,
    head_len: usize,
}

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Scraper {
    /// Starts the thread. It ends after this value has been dropped.
    pub(super) fn start(mut scrape: Scrape, fresh: Duration) -> io::Result<Scraper> {
        let (orders, ordered) = mpsc::channel();
        let (send, results) = mpsc::channel();
        let done = Arc::new(EventFd::new()?);
        let signal = Arc::clone(&done);
        thread::Builder::new().name("scraper".to_owned()).spawn(move || {
            while ordered.recv().is_ok() && send.send(scrape()).is_ok() {
                signal.signal(1);
            }
        })?;
        Ok(Scraper { orders, results, done, is_running: false, latest: None, fresh })
    }

    /// Returns a result that is fresh. Otherwise there will be one: the descriptor becomes readable then.
    pub(super) fn reply(&mut self, now: Instant) -> Option<Reply> {
        let latest = self.latest.as_ref();
        if let Some((_, reply)) = latest.filter(|(made, _)| now.saturating_duration_since(*made) < self.fresh)
        {
            return Some(reply.clone());
        }
        // The thread lives as long as this value.
        self.is_running = self.is_running || self.orders.send(()).is_ok();
        None
    }

    /// Takes the result of the thread, if it has one.
    pub(super) fn take(&mut self) -> Option<Reply> {
        let text = self.results.try_recv().ok()?;
        // It may be readable no more, which is no error.
        let _units = self.done.take();
        self.is_running = false;
        let reply = Reply::new(Status::OK, &text);
        self.latest = Some((Instant::now(), reply.clone()));
        Some(reply)
    }
}

impl AsFd for Scraper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Reply {
    pub(super) fn new(status: Status, text: &str) -> Reply {
        let len = text.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        );
        Reply { bytes: [head.as_bytes(), text.as_bytes()].concat().into(), head_len: head.len() }
    }

    /// Length with or without the body.
    pub(super) fn len(&self, has_body: bool) -> usize {
        if has_body { self.bytes.len() } else { self.head_len }
    }
}
