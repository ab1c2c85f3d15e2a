//! One connection: it receives a request, waits for the counters, and sends the reply, never waiting for the
//! client. After the reply it stays until the client closes it, because the kernel discards a reply that the
//! client has not read when a socket with unread input is closed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{POLLIN, POLLOUT, linger};
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, setsockopt, shutdown, sockopt};
use sys::PollFd;

use super::hosts::Hosts;
use super::request::{self, REQUEST_MAX, Request, Status};
use super::scraper::{Reply, Scraper};
use super::shares::{Party, Stage};

/// Time limits of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// From the connection to the end of the request. Prometheus sends it at once; half is short for a link
    /// that loses packets, double keeps the places of silent clients longer.
    pub(super) request: Duration,
    /// From the request to its reply. It is longer than processes that do not answer are waited for; with
    /// double, Prometheus stops waiting first (10 s).
    pub(super) scrape: Duration,
    /// From the reply until the client has read it and closed the connection. The series of 1000 queue pairs
    /// have 4 MB, which take 0.3 s at 100 Mbit/s.
    pub(super) reply: Duration,
}

/// Time for which the kernel keeps the rest of a reply after the connection was closed, in milliseconds. A
/// client that closes its half with the request looks as if it had read the reply. The kernel's default is
/// minutes (tcp_orphan_retries in tcp(7)); double keeps twice the memory for clients that do not read.
const UNREAD_MAX_MS: u32 = 5000;

/// What all clients share.
pub(super) struct Service {
    /// The hosts for which requests are answered; `None` for all.
    pub(super) hosts: Option<Hosts>,
    pub(super) scraper: Scraper,
    pub(super) limits: Limits,
}

/// A client with its connection.
pub(super) struct Client {
    connection: OwnedFd,
    pub(super) party: Party,
    pub(super) deadline: Instant,
    state: State,
}

enum State {
    /// The part of the request that has arrived.
    Request(Vec<u8>),
    /// Waits for the counters; the reply to GET has a body, that to HEAD has none.
    Scrape { has_body: bool },
    /// Sends the first `len` bytes of the reply, then waits until the client closes the connection.
    Reply { reply: Reply, len: usize, sent: usize },
}

/// Whether a connection stays.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    Keep,
    Close,
}

impl Client {
    /// A new connection.
    pub(super) fn new(connection: OwnedFd, party: Party, limits: &Limits) -> Client {
        // A Unix socket has no such option: what its client has not read ends with the client.
        let _unset = setsockopt(&connection, sockopt::TcpUserTimeout, &UNREAD_MAX_MS);
        let deadline = Instant::now() + limits.request;
        Client { connection, party, deadline, state: State::Request(Vec::new()) }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Request(_) => Stage::Request,
            State::Scrape { .. } => Stage::Scrape,
            State::Reply { .. } => Stage::Reply,
        }
    }

    /// The event that [`step`](Self::step) waits for.
    pub(super) fn poll_fd(&self) -> PollFd {
        let events = match &self.state {
            State::Scrape { .. } => 0,
            State::Reply { len, sent, .. } if sent < len => POLLOUT,
            State::Request(_) | State::Reply { .. } => POLLIN,
        };
        PollFd::new(self.connection.as_raw_fd(), events)
    }

    /// Receives or sends after an event.
    pub(super) fn step(&mut self, service: &mut Service) -> Next {
        match &self.state {
            State::Request(_) => self.receive(service),
            // The only events are errors.
            State::Scrape { .. } => Next::Close,
            State::Reply { len, sent, .. } if sent < len => self.send(),
            State::Reply { .. } => match self.recv(&mut [0; REQUEST_MAX]) {
                Ok(0) | Err(_) => Next::Close,
                Ok(_) => Next::Keep,
            },
        }
    }

    fn receive(&mut self, service: &mut Service) -> Next {
        let mut part = [0; REQUEST_MAX];
        let received = self.recv(&mut part);
        let State::Request(bytes) = &mut self.state else { return Next::Keep };
        let answer = match received {
            Ok(0) if bytes.is_empty() => return Next::Close,
            Ok(0) => Some(Err(refusal(Status::BAD_REQUEST, None))),
            Ok(len) => {
                bytes.extend_from_slice(&part[..len]);
                request::parse(bytes).map(|request| service.check(request))
            }
            Err(Errno::EAGAIN) => return Next::Keep,
            Err(_) => return Next::Close,
        };
        match answer {
            None => Next::Keep,
            Some(Err((reply, len))) => self.begin(reply, len, &service.limits),
            Some(Ok(has_body)) => {
                let now = Instant::now();
                self.state = State::Scrape { has_body };
                self.deadline = now + service.limits.scrape;
                service.scraper.reply(now).map_or(Next::Keep, |reply| self.reply(&reply, &service.limits))
            }
        }
    }

    /// Replies if the client waits for the counters.
    pub(super) fn reply(&mut self, reply: &Reply, limits: &Limits) -> Next {
        let State::Scrape { has_body } = self.state else { return Next::Keep };
        self.begin(reply.clone(), reply.len(has_body), limits)
    }

    fn begin(&mut self, reply: Reply, len: usize, limits: &Limits) -> Next {
        self.state = State::Reply { reply, len, sent: 0 };
        self.deadline = Instant::now() + limits.reply;
        self.send()
    }

    fn send(&mut self) -> Next {
        let State::Reply { reply, len, sent } = &mut self.state else { return Next::Keep };
        let fd = self.connection.as_raw_fd();
        while sent < len {
            match send(fd, &reply.bytes[*sent..*len], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(more) => *sent += more,
                Err(Errno::EAGAIN) => return Next::Keep,
                Err(_) => return Next::Close,
            }
        }
        if shutdown(fd, Shutdown::Write).is_ok() { Next::Keep } else { Next::Close }
    }

    fn recv(&self, buffer: &mut [u8]) -> nix::Result<usize> {
        recv(self.connection.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)
    }

    /// Ends the connection, because of its deadline or in favour of another client.
    pub(super) fn end(self, is_late: bool) {
        if let State::Reply { .. } = self.state {
            // Otherwise the kernel would keep the rest of the reply for a client that does not read.
            let _unset = setsockopt(&self.connection, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 });
            return;
        }
        let (status, why) = match self.state {
            State::Request(_) if is_late => (Status::REQUEST_TIMEOUT, "the request is not complete"),
            _ if is_late => (Status::SERVICE_UNAVAILABLE, "the processes have not answered in time"),
            _ => (Status::SERVICE_UNAVAILABLE, "too many connections at a time"),
        };
        let reply = Reply::new(status, &format!("{status}: {why}\n"));
        // Best effort: there is room for a short reply, unless the client has disconnected. With unread input
        // the kernel would discard it.
        let _unread = self.recv(&mut [0; REQUEST_MAX]);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _sent = send(self.connection.as_raw_fd(), &reply.bytes, flags);
    }
}

impl Service {
    /// Returns whether the reply with the counters has a body; for other requests the refusal and its length.
    fn check(&self, request: Result<Request<'_>, Status>) -> Result<bool, (Reply, usize)> {
        let request = request.map_err(|status| refusal(status, None))?;
        if let (Some(hosts), Some(host)) = (&self.hosts, &request.host)
            && !hosts.contain(host)
        {
            return Err(refusal(Status::MISDIRECTED_REQUEST, Some(&request)));
        }
        request.has_body().map_err(|status| refusal(status, Some(&request)))
    }
}

/// A reply without counters, and how much of it is sent.
fn refusal(status: Status, request: Option<&Request<'_>>) -> (Reply, usize) {
    let text = match request.and_then(|request| request.host.as_ref()) {
        Some(host) if status == Status::MISDIRECTED_REQUEST => format!(
            "{status}: {host} is not a known name of this server. If it is one, start the server with \
             'roxie metrics --host {host}'.\n"
        ),
        _ => format!("{status}\n"),
    };
    let reply = Reply::new(status, &text);
    let len = reply.len(request.is_none_or(|request| !request.is_head()));
    (reply, len)
}
