//! Becoming connected: what each event of the connection manager leads to.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use wire::rsocket::Hello;

use super::endpoint::Endpoint;
use super::stream::{Inner, Phase, State, Stream, channel};
use super::wait::Waits;
use crate::cm::{CmEvent, CmEventKind, ConnParam, Param};

/// How long a neighbour is waited for: as long as rdma-core does in seven attempts of 1, 2, .. 64 seconds.
const RESOLVE_MAX: Duration = Duration::from_secs(127);

impl Stream {
    /// Connects (rconnect); waits for it unless the socket is non-blocking.
    ///
    /// # Errors
    /// `EINPROGRESS` on a non-blocking socket, `EALREADY` while that lasts, `EISCONN` afterwards; `ECONNREFUSED`,
    /// `ETIMEDOUT`, and those of [`Id::resolve_addr`](crate::cm::Id::resolve_addr).
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        let mut state = self.0.lock();
        match state.phase {
            Phase::Idle | Phase::Bound => {}
            Phase::Opening => return error(libc::EALREADY),
            Phase::Connected { .. } => return error(libc::EISCONN),
            _ => return error(libc::EINVAL),
        }
        state.id.resolve_addr(None, to, RESOLVE_MAX)?;
        state.phase = Phase::Opening;
        let nonblocking = state.nonblocking;
        drop(state);
        let outcome = self.0.wait_for(nonblocking.then_some(()), |state| match state.phase {
            Phase::Opening => None,
            Phase::Failed => Some(Err(state.error.take().unwrap_or(libc::ECONNREFUSED))),
            _ => Some(Ok(())),
        });
        match outcome {
            Ok(connected) => connected.map_err(io::Error::from_raw_os_error),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => error(libc::EINPROGRESS),
            Err(e) => Err(e),
        }
    }

    /// The next connection (raccept); waits for one unless the socket is non-blocking.
    ///
    /// # Errors
    /// `WouldBlock`; `EINVAL` unless it listens; `EMFILE` if no descriptor is left for the connection, which is refused
    /// then.
    pub fn accept(&self) -> io::Result<Stream> {
        let nonblocking = self.0.lock().nonblocking;
        self.0.wait_for(nonblocking.then_some(()), |state| {
            if state.phase == Phase::Closed {
                return Some(Err(io::Error::from_raw_os_error(libc::EBADF)));
            }
            if state.phase != Phase::Listening {
                return Some(Err(io::Error::from_raw_os_error(libc::EINVAL)));
            }
            while self.0.channel.has_events()
                && let Ok(event) = self.0.channel.get_event()
            {
                match event.kind {
                    CmEventKind::ConnectRequest => match self.0.take(state, event) {
                        Ok(None) => {}
                        taken => return taken.transpose(),
                    },
                    CmEventKind::DeviceRemoval => {
                        return Some(Err(io::Error::from_raw_os_error(libc::ENETDOWN)));
                    }
                    _ => {}
                }
            }
            None
        })?
    }
}

impl Inner {
    /// Reads events, and acts upon them; whether there were any. A listener's wait for [`Stream::accept`]: programs that
    /// librspreload.so serves want the descriptor of a connection to come from that call.
    pub(super) fn manage(&self, state: &mut State) -> bool {
        let mut any = false;
        while state.phase != Phase::Listening
            && self.channel.has_events()
            && let Ok(event) = self.channel.get_event()
        {
            any = true;
            self.happened(state, &event);
        }
        any
    }

    fn happened(&self, state: &mut State, event: &CmEvent) {
        match event.kind {
            CmEventKind::AddrResolved if state.phase == Phase::Opening => {
                if let Err(error) = state.id.resolve_route() {
                    state.failed(error.raw_os_error().unwrap_or(libc::EHOSTUNREACH));
                }
            }
            CmEventKind::RouteResolved if state.phase == Phase::Opening => {
                if let Err(error) = self.ask(state) {
                    state.failed(error.raw_os_error().unwrap_or(libc::EIO));
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

    /// The path is known: brings up a queue pair and asks for the connection.
    fn ask(&self, state: &mut State) -> io::Result<()> {
        let endpoint = Endpoint::new(&self.context, &state.sizes)?;
        endpoint.start(&state.id)?;
        let param = ConnParam { responder_resources: 0, initiator_depth: 0, ..ConnParam::default() };
        state.id.connect(Some(&param), &endpoint.hello())?;
        state.endpoint = Some(endpoint);
        Ok(())
    }

    /// Accepts a request, or refuses it if it does not come from an rsocket.
    fn take(&self, state: &State, event: CmEvent) -> io::Result<Option<Stream>> {
        let id = event.id.clone();
        let hello = event.private_data.first_chunk().and_then(Hello::parse);
        let (Some(hello), Param::Conn(param)) = (hello, event.param) else {
            id.reject(b"")?;
            return Ok(None);
        };
        // The identifier does not leave this channel while an event of it is unacknowledged.
        drop(event);
        let connection = self.answer(state, id.clone(), &hello, &param);
        if connection.is_err() {
            let _already_gone = id.reject(b"");
        }
        connection.map(Some)
    }

    fn answer(
        &self,
        state: &State,
        id: crate::cm::Id,
        hello: &Hello,
        param: &ConnParam,
    ) -> io::Result<Stream> {
        let channel = channel()?;
        id.migrate(&channel)?;
        let mut endpoint = Endpoint::new(&self.context, &state.sizes)?;
        endpoint.start(&id)?;
        endpoint.open(hello);
        id.accept(Some(param), &endpoint.hello())?;
        let connection = Stream::with_id(&self.context, channel, id, state.sizes);
        let mut own = connection.0.lock();
        own.phase = Phase::Opening;
        own.nonblocking = state.nonblocking;
        own.endpoint = Some(endpoint);
        drop(own);
        Ok(connection)
    }

    /// The peer, or who tells of its death, has ended the connection; what it wrote before has arrived.
    fn ended_by_peer(&self, state: &mut State) {
        self.reap(state);
        match state.phase {
            Phase::Opening => state.failed(libc::ECONNRESET),
            _ => state.disconnected(),
        }
        // Agreed.
        let _nothing_to_answer = state.id.disconnect();
    }
}

/// The handshake is complete; on the active side the peer's answer is in the event.
fn established(state: &mut State, event: &CmEvent) {
    let Some(endpoint) = state.endpoint.as_mut() else { return };
    // A passive side has it from the request, and this event has no private data.
    if !endpoint.is_open() {
        match event.private_data.first_chunk().and_then(Hello::parse) {
            Some(hello) => endpoint.open(&hello),
            None => return state.failed(libc::EPROTONOSUPPORT),
        }
    }
    state.phase = Phase::Connected { readable: true, writable: true };
}
