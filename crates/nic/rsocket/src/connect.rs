//! Connecting and accepting: handles the events of the connection manager.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use transport::VerbsError;
use wire::rsocket::Hello;

use crate::endpoint::Endpoint;
use crate::errno;
use crate::stream::{Inner, Phase, State, Stream, channel};
use crate::wait::Waitable;
use roxie::cm::{CmEvent, CmEventKind, ConnParam, Param};

/// Limit for resolving the neighbour: the sum of rdma-core's seven attempts of 1, 2, .. 64 seconds.
const RESOLVE_MAX: Duration = Duration::from_secs(127);

impl Stream {
    /// Connects (rconnect). Waits for the connection unless the socket is non-blocking.
    ///
    /// # Errors
    /// `EINPROGRESS` on a non-blocking socket, then `EALREADY` until it is connected, then `EISCONN`;
    /// `ECONNREFUSED`, `ETIMEDOUT`, and those of [`Id::resolve_addr`](roxie::cm::Id::resolve_addr).
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.phase {
            Phase::Idle | Phase::Bound => {}
            Phase::Opening => return Err(errno(libc::EALREADY)),
            Phase::Connected { .. } => return Err(errno(libc::EISCONN)),
            _ => return Err(errno(libc::EINVAL)),
        }
        state.id.resolve_addr(None, to, RESOLVE_MAX)?;
        state.phase = Phase::Opening;
        let nonblocking = state.nonblocking;
        drop(state);
        let outcome = self.0.wait_for(nonblocking, |state| match state.phase {
            Phase::Opening => None,
            Phase::Failed => Some(Err(state.error.take().unwrap_or(libc::ECONNREFUSED))),
            _ => Some(Ok(())),
        });
        match outcome {
            Ok(connected) => connected.map_err(io::Error::from_raw_os_error),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(errno(libc::EINPROGRESS)),
            Err(e) => Err(e),
        }
    }

    /// Accepts the next connection (raccept). Waits for one unless the socket is non-blocking. The connection
    /// is blocking in either case.
    ///
    /// # Errors
    /// `WouldBlock`; `EINVAL` unless it listens; `EMFILE` if the process is out of descriptors, which rejects
    /// the request.
    pub fn accept(&self) -> io::Result<Stream> {
        let nonblocking = self.0.lock().nonblocking;
        self.0.wait_for(nonblocking, |state| {
            if state.phase == Phase::Closed {
                return Some(Err(errno(libc::EBADF)));
            }
            if state.phase != Phase::Listening {
                return Some(Err(errno(libc::EINVAL)));
            }
            while self.0.channel.has_events()
                && let Ok(event) = self.0.channel.get_event()
            {
                match event.kind {
                    CmEventKind::ConnectRequest => match self.0.accept_request(state, event) {
                        Ok(None) => {}
                        taken => return taken.transpose(),
                    },
                    CmEventKind::DeviceRemoval => {
                        return Some(Err(errno(libc::ENETDOWN)));
                    }
                    _ => {}
                }
            }
            None
        })?
    }
}

impl Inner {
    /// Handles pending events; returns true if there were any. Events of a listener wait for
    /// [`Stream::accept`]: under librspreload.so the descriptor of a connection must be created by that call.
    pub(super) fn manage(&self, state: &mut State) -> bool {
        let mut any = false;
        while state.phase != Phase::Listening
            && self.channel.has_events()
            && let Ok(event) = self.channel.get_event()
        {
            any = true;
            self.handle_event(state, &event);
        }
        any
    }

    fn handle_event(&self, state: &mut State, event: &CmEvent) {
        match event.kind {
            CmEventKind::AddrResolved if state.phase == Phase::Opening => {
                if let Err(error) = state.id.resolve_route() {
                    state.failed(error.errno());
                }
            }
            CmEventKind::RouteResolved if state.phase == Phase::Opening => {
                if let Err(error) = self.request(state) {
                    let refused = VerbsError::in_io(&error).map(VerbsError::errno);
                    state.failed(refused.or(error.raw_os_error()).unwrap_or(libc::EIO));
                }
            }
            CmEventKind::Established if state.phase == Phase::Opening => established(state, event),
            CmEventKind::Rejected => state.failed(libc::ECONNREFUSED),
            CmEventKind::AddrError
            | CmEventKind::RouteError
            | CmEventKind::ConnectError
            | CmEventKind::Unreachable => state.failed(event.status.abs()),
            CmEventKind::Disconnected => self.ended_by_peer(state),
            CmEventKind::DeviceRemoval => state.failed(libc::ENETDOWN),
            _ => {}
        }
    }

    /// Creates a queue pair and requests the connection, after the route is resolved.
    fn request(&self, state: &mut State) -> io::Result<()> {
        let endpoint = Endpoint::new(&state.id, &state.sizes)?;
        endpoint.start(&state.id)?;
        let param = ConnParam { responder_resources: 0, initiator_depth: 0, ..ConnParam::default() };
        state.id.connect(Some(&param), &endpoint.hello())?;
        state.endpoint = Some(endpoint);
        Ok(())
    }

    /// Accepts a request; rejects it and returns `None` if it does not come from an rsocket.
    fn accept_request(&self, state: &State, event: CmEvent) -> io::Result<Option<Stream>> {
        let id = event.id.clone();
        let hello = event.private_data.first_chunk().and_then(Hello::parse);
        let (Some(hello), Param::Conn(param)) = (hello, event.param) else {
            id.reject(b"")?;
            return Ok(None);
        };
        // Migrating waits until all events of the identifier are acknowledged; dropping the event does that.
        drop(event);
        let connection = self.accept_connection(state, id.clone(), &hello, &param);
        if connection.is_err() {
            let _already_gone = id.reject(b"");
        }
        connection.map(Some)
    }

    fn accept_connection(
        &self,
        state: &State,
        id: roxie::cm::Id,
        hello: &Hello,
        param: &ConnParam,
    ) -> io::Result<Stream> {
        let channel = channel()?;
        id.migrate(&channel)?;
        let mut endpoint = Endpoint::new(&id, &state.sizes)?;
        endpoint.start(&id)?;
        endpoint.open(hello);
        id.accept(Some(param), &endpoint.hello())?;
        let connection = Stream::with_id(channel, id, state.sizes);
        let mut own = connection.0.lock();
        own.phase = Phase::Opening;
        own.endpoint = Some(endpoint);
        drop(own);
        Ok(connection)
    }

    /// Handles a disconnect by the peer, or a disconnect notice after its death. Data of earlier WRITEs has
    /// arrived.
    fn ended_by_peer(&self, state: &mut State) {
        self.reap(state);
        match state.phase {
            Phase::Opening => state.failed(libc::ECONNRESET),
            _ => state.disconnected(),
        }
        // Answers the disconnect.
        let _nothing_to_answer = state.id.disconnect();
    }
}

/// Handles the end of the handshake; on the active side the event carries the peer's hello.
fn established(state: &mut State, event: &CmEvent) {
    let Some(endpoint) = state.endpoint.as_mut() else { return };
    // A passive side got the hello with the request; its event has no private data.
    if !endpoint.is_open() {
        match event.private_data.first_chunk().and_then(Hello::parse) {
            Some(hello) => endpoint.open(&hello),
            None => return state.failed(libc::EPROTONOSUPPORT),
        }
    }
    state.phase = Phase::Connected { readable: true, writable: true };
}
