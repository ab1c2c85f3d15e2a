//! The server end of the control socket, served by the engine's own thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;

use super::{RECORD_MAX, Reply, Request, engine_prefix};
use roxie::registry::DomainConfig;
use roxie::registry::identity::Relation;
use roxie::registry::meeting::{self, Listener, ListenerKind};
use sys::Epoll;

/// Open connections. A further one replaces the oldest, so idle connections cannot lock other clients
/// out.
const CONNECTIONS_MAX: usize = 8;
/// Connections and requests served per call, so that the caller gets back to its other work.
const ROUND_MAX: usize = 32;
/// Tokens of the listening sockets; connections have others.
const PUBLIC: u64 = 0;
const PRIVATE: u64 = u64::MAX;

/// The listening socket; open as long as the engine lives.
#[derive(Debug)]
pub(crate) struct Control {
    epoll: Epoll,
    listener: Listener,
    connections: Mutex<Connections>,
}

/// Handles requests.
pub(crate) trait Answers {
    /// Returns the reply for a connection, with a descriptor if one belongs to it.
    fn answer(&self, client: u64, request: Request) -> (Reply, Option<OwnedFd>);

    /// The connection was closed, for any reason.
    fn forget(&self, client: u64);
}

#[derive(Debug, Default)]
struct Connections {
    /// By token, the oldest first.
    open: VecDeque<(u64, OwnedFd)>,
    last_token: u64,
}

impl Control {
    /// Starts to listen.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn open(domain: &DomainConfig, slot: u16) -> io::Result<Control> {
        let prefix = engine_prefix(domain, std::process::id(), slot);
        let name = format!("{prefix}{:016x}", sys::random_u64());
        let listener = meeting::listen(&name, CONNECTIONS_MAX as i32)?;
        let epoll = Epoll::new()?;
        epoll.add(listener.public.as_fd(), PUBLIC)?;
        if let Some(private) = &listener.private {
            epoll.add(private.socket.as_fd(), PRIVATE)?;
        }
        Ok(Control { epoll, listener, connections: Mutex::default() })
    }

    /// Readable when [`serve`](Control::serve) has something to do.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Lets `owner` answer the pending requests, without waiting.
    pub(crate) fn serve(&self, owner: &dyn Answers) {
        // Another thread is serving them already.
        let Ok(mut connections) = self.connections.try_lock() else { return };
        let mut tokens = [0; 16];
        for _ in 0..ROUND_MAX / tokens.len() {
            let ready = self.epoll.ready(&mut tokens);
            for &token in &tokens[..ready] {
                match (token, &self.listener.private) {
                    (PUBLIC, _) => {
                        connections.accept(&self.epoll, &self.listener.public, ListenerKind::Public, owner);
                    }
                    (PRIVATE, Some(private)) => {
                        connections.accept(&self.epoll, &private.socket, ListenerKind::Private, owner);
                    }
                    (token, _) => connections.serve(token, owner),
                }
            }
            if ready == 0 {
                break;
            }
        }
    }

    /// Disconnects the copies of the descriptors in a forked child.
    pub(crate) fn disinherit(&self) {
        sys::disconnect(&self.listener.public);
        self.listener.private.iter().for_each(|private| sys::disconnect(&private.socket));
        sys::disconnect(&self.epoll);
        // If the parent was serving during the fork, the child keeps its connections until it ends,
        // without answering.
        if let Ok(connections) = self.connections.try_lock() {
            connections.open.iter().for_each(|(_, connection)| sys::disconnect(connection));
        }
    }
}

/// What a client of another user gets before it is disconnected.
fn refusal() -> Reply {
    let uid = sys::effective_uid();
    let why = format!("it accepts only its own user ({uid}) and root, in its own user namespace");
    let remedy = "run roxie as that user, and outside of 'unshare' and containers".to_owned();
    Reply::Refused { why, remedy: Some(remedy) }
}

impl Connections {
    fn accept(&mut self, epoll: &Epoll, listener: &OwnedFd, kind: ListenerKind, owner: &dyn Answers) {
        // A client that has disconnected already needs nothing.
        let Ok(connection) = sys::accept(listener.as_fd()) else { return };
        let Ok(peer) = meeting::peer(&connection, kind) else { return };
        if !matches!(peer.relation, Relation::Same | Relation::Root) {
            // A client that has disconnected does not need the reply.
            let _gone = sys::send_record(connection.as_fd(), &refusal().to_bytes(), &[], &[]);
            return;
        }
        if self.open.len() == CONNECTIONS_MAX
            && let Some((token, _)) = self.open.pop_front()
        {
            owner.forget(token);
        }
        self.last_token += 1;
        // Without memory the connection is closed, which the client notices.
        if epoll.add(connection.as_fd(), self.last_token).is_ok() {
            self.open.push_back((self.last_token, connection));
        }
    }

    fn serve(&mut self, token: u64, owner: &dyn Answers) {
        let Some(at) = self.open.iter().position(|(known, _)| *known == token) else { return };
        let connection = &self.open[at].1;
        let mut buffer = vec![0; RECORD_MAX];
        // Clients have no reason to pass descriptors; any that arrive are closed.
        let received = match sys::recv_record(connection.as_fd(), &mut buffer, &mut Vec::new(), false) {
            Ok(received) if received.len > 0 => received,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            _ => {
                drop(self.open.remove(at));
                return owner.forget(token);
            }
        };
        let request = Request::parse(&buffer[..received.len]).filter(|_| !received.truncated);
        let (reply, passed) = match request {
            Some(request) => owner.answer(token, request),
            None => {
                let why = "the process does not understand the request".to_owned();
                let remedy = Some("it may run another version of roxie: restart it".to_owned());
                (Reply::Refused { why, remedy }, None)
            }
        };
        let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
        // A client that has disconnected does not need the reply.
        let _gone = sys::send_record(connection.as_fd(), &reply.to_bytes(), &[], &passed);
    }
}
