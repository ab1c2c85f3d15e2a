//! The end that listens, in the engine's own thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;

use super::{RECORD_MAX, Reply, Request};
use crate::registry::DomainConfig;
use sys::Epoll;

/// Connections at once. Another one takes the place of the oldest: nobody can keep others out by doing nothing.
const CONNECTIONS_MAX: usize = 8;
/// Connections and requests served in one turn; the caller has other things to do.
const TURN_MAX: usize = 32;
const LISTENER: u64 = 0;

/// Listens for as long as the engine lives.
#[derive(Debug)]
pub(crate) struct Control {
    epoll: Epoll,
    listener: OwnedFd,
    connections: Mutex<Connections>,
}

/// Who is asked.
pub(crate) trait Answers {
    /// Answers a connection, with a descriptor if one belongs to it.
    fn answer(&self, client: u64, request: Request) -> (Reply, Option<OwnedFd>);

    /// The connection is gone, however it ended.
    fn forget(&self, client: u64);
}

#[derive(Debug, Default)]
struct Connections {
    /// By token, the oldest first.
    open: VecDeque<(u64, OwnedFd)>,
    last_token: u64,
}

impl Control {
    /// Begins to listen.
    ///
    /// # Errors
    /// `EMFILE`; `EADDRINUSE` if somebody has our name.
    pub(crate) fn open(domain: &DomainConfig, slot: u8) -> io::Result<Control> {
        let listener = sys::bind_seqpacket(&domain.hook_name(std::process::id(), slot))?;
        sys::listen(listener.as_fd(), CONNECTIONS_MAX as i32)?;
        let epoll = Epoll::new()?;
        epoll.add(listener.as_fd(), LISTENER)?;
        Ok(Control { epoll, listener, connections: Mutex::default() })
    }

    /// Readable when [`serve`](Control::serve) has something to do.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Lets `owner` answer what was asked, without waiting.
    pub(crate) fn serve(&self, owner: &dyn Answers) {
        // Whoever has it serves.
        let Ok(mut connections) = self.connections.try_lock() else { return };
        let mut tokens = [0; 16];
        for _ in 0..TURN_MAX / tokens.len() {
            let ready = self.epoll.ready(&mut tokens);
            for &token in &tokens[..ready] {
                match token {
                    LISTENER => connections.accept(&self.epoll, &self.listener, owner),
                    token => connections.serve(token, owner),
                }
            }
            if ready == 0 {
                break;
            }
        }
    }

    /// A forked child gives up its copies.
    pub(crate) fn disinherit(&self) {
        sys::disconnect(&self.listener);
        sys::disconnect(&self.epoll);
        // If the parent was serving, the child keeps the connection until it ends; it answers nobody.
        if let Ok(connections) = self.connections.try_lock() {
            connections.open.iter().for_each(|(_, connection)| sys::disconnect(connection));
        }
    }
}

impl Connections {
    fn accept(&mut self, epoll: &Epoll, listener: &OwnedFd, owner: &dyn Answers) {
        // Whoever has gone already is not missed.
        let Ok(connection) = sys::accept(listener.as_fd()) else { return };
        let is_ours = |uid| uid == 0 || uid == sys::effective_uid();
        if !sys::peer_credentials(connection.as_fd()).is_ok_and(|peer| is_ours(peer.uid)) {
            return;
        }
        if self.open.len() == CONNECTIONS_MAX
            && let Some((token, _)) = self.open.pop_front()
        {
            owner.forget(token);
        }
        self.last_token += 1;
        // Out of memory: the connection is closed, and its owner sees that.
        if epoll.add(connection.as_fd(), self.last_token).is_ok() {
            self.open.push_back((self.last_token, connection));
        }
    }

    fn serve(&mut self, token: u64, owner: &dyn Answers) {
        let Some(at) = self.open.iter().position(|(known, _)| *known == token) else { return };
        let connection = &self.open[at].1;
        let mut buffer = vec![0; RECORD_MAX];
        // Nobody passes us descriptors; any that come are closed.
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
        // Whoever does not wait for the reply does not want it.
        let _gone = sys::send_record(connection.as_fd(), &reply.to_bytes(), &[], &passed);
    }
}
