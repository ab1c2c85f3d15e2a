//! Event channels (rdma_create_event_channel(3), rdma_get_cm_event(3)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};

use transport::cm::{CmEventKind as Protocol, PeerParams, SidrStatus};

use super::event::{CmEvent, CmEventKind, ConnParam, Param, RawEvent, UdParam};
use super::id::{Id, IdInner};
use super::pace::Pace;
use crate::events::EventQueue;

/// Delivers the events of identifiers to the application. Its descriptor is readable while events are unread.
#[derive(Debug)]
pub struct EventChannel(pub(super) Arc<Queue>, Pace);

/// The part that identifiers share.
pub(super) type Queue = EventQueue<Unread>;

/// An unread event. It does not keep its identifier alive.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    pub(super) target: Weak<IdInner>,
    pub(super) raw: RawEvent,
}

impl EventChannel {
    /// Creates an empty channel.
    ///
    /// # Errors
    /// `EMFILE` if the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(EventQueue::new()?), Pace::default()))
    }

    /// Returns the descriptor for poll(2) and O_NONBLOCK.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.fd()
    }

    /// Makes [`get_event`](Self::get_event) return `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// `EBADF` if the application has closed the descriptor.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.0.set_nonblocking()
    }

    /// True if an identifier has the channel.
    pub fn has_identifiers(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// True if events are unread; makes no system call.
    pub fn has_events(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the next event; waits for one. Changes the QP like librdmacm: completes the handshake if the
    /// peer has accepted, moves the QP to ERR if the peer has refused.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking and there is no event; `Interrupted` on a signal.
    pub fn get_event(&self) -> io::Result<CmEvent> {
        self.get_event_after(|_| {})
    }

    /// As [`get_event`](Self::get_event). If the event may change the QP of an identifier, calls `before`
    /// with that identifier first. `before` may give it another QP ([`Id::set_qp`]).
    ///
    /// # Errors
    /// As for [`get_event`](Self::get_event).
    pub fn get_event_after(&self, before: impl Fn(&Id)) -> io::Result<CmEvent> {
        loop {
            let unread = self.0.get()?;
            if let Some(target) = unread.target.upgrade()
                && let Some(event) = read(target, unread.raw, &before)
            {
                if event.kind == CmEventKind::ConnectRequest && !self.0.is_nonblocking() {
                    self.1.wait(&event.id.0, || self.admit_requests());
                }
                return Ok(event);
            }
        }
    }
}

impl EventChannel {
    /// Takes unread requests out of the backlog while [`Pace`] delays the reader. The delay is not the
    /// program's fault, and rejected peers would retry only after seconds.
    pub(super) fn admit_requests(&self) {
        let mut children = Vec::new();
        self.0.for_each(|unread| {
            if let RawEvent::Request { child, .. } = &unread.raw {
                children.push(Arc::clone(child));
            }
        });
        for child in children {
            child.request_taken();
        }
    }
}

impl AsFd for EventChannel {
    /// The descriptor is readable while events are unread.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        take_unread(&self.0, |_| true);
    }
}

/// Removes events from a channel. The caller drops them after the queue is unlocked: a request owns an
/// identifier, and its destructor locks the queue.
pub(super) fn take_unread(queue: &Queue, which: impl Fn(&Unread) -> bool) -> Vec<Unread> {
    let mut taken = Vec::new();
    queue.retain(|unread| {
        let take = which(unread);
        if take {
            taken.push(unread.clone());
        }
        !take
    });
    taken
}

/// Returns `None` for an event that the application does not get.
fn read(target: Arc<IdInner>, raw: RawEvent, before: &dyn Fn(&Id)) -> Option<CmEvent> {
    let mut event = CmEvent {
        id: Id(Arc::clone(&target)),
        listen_id: None,
        kind: CmEventKind::AddrResolved,
        status: 0,
        private_data: Vec::new(),
        param: Param::Conn(ConnParam::NONE),
        join: None,
        _receipt: target.report(),
    };
    if let RawEvent::Joined(_) | RawEvent::Cm(Protocol::ConnectResponse(_) | Protocol::Rejected(_)) = raw {
        before(&event.id);
    }
    match raw {
        RawEvent::AddrResolved => {}
        RawEvent::AddrError(number) => {
            event.kind = CmEventKind::AddrError;
            event.status = -number;
        }
        RawEvent::RouteResolved => event.kind = CmEventKind::RouteResolved,
        RawEvent::DeviceRemoval => event.kind = CmEventKind::DeviceRemoval,
        RawEvent::AddrChange => event.kind = CmEventKind::AddrChange,
        RawEvent::User { kind, status, argument } => {
            (event.kind, event.status) = (kind, status);
            event.param = Param::Own(argument);
        }
        RawEvent::Request { child, params, private_data } => {
            child.request_taken();
            event.kind = CmEventKind::ConnectRequest;
            event.param = child.request_param(params.as_ref());
            event.private_data = private_data;
            event.listen_id = Some(Id(target));
            event.id = Id(child);
        }
        RawEvent::Joined(join) => target.joined(join, &mut event),
        RawEvent::Cm(protocol) => read_protocol(&target, protocol, &mut event)?,
    }
    Some(event)
}

fn read_protocol(target: &Arc<IdInner>, protocol: Protocol, event: &mut CmEvent) -> Option<()> {
    match protocol {
        Protocol::ConnectResponse(response) => {
            event.private_data = response.private_data.to_vec();
            accepted(target, &response.params, event);
        }
        Protocol::Established => event.kind = CmEventKind::Established,
        Protocol::Rejected(rejection) => {
            if target.has_failed() {
                return None;
            }
            target.fail_qp();
            event.kind = CmEventKind::Rejected;
            event.status = i32::from(rejection.reason.0);
            event.private_data = rejection.private_data.to_vec();
        }
        Protocol::Unreachable { is_refused } => {
            event.kind = CmEventKind::Unreachable;
            event.status = if is_refused { -libc::ECONNREFUSED } else { -libc::ETIMEDOUT };
        }
        Protocol::Disconnected { timed_out } => {
            if target.has_failed() {
                return None;
            }
            event.kind = CmEventKind::Disconnected;
            event.status = if timed_out { -libc::ETIMEDOUT } else { 0 };
        }
        Protocol::TimewaitExit => event.kind = CmEventKind::TimewaitExit,
        Protocol::SidrResponse(response) => {
            event.private_data = response.private_data.to_vec();
            let av = target.address_vector();
            event.param = Param::Ud(UdParam { av, qp_num: response.qpn, q_key: response.q_key });
            if response.status == SidrStatus::SUCCESS {
                event.kind = CmEventKind::Established;
            } else {
                event.kind = CmEventKind::Unreachable;
                event.status = i32::from(response.status.0);
            }
        }
        // Requests arrive as `RawEvent::Request`.
        Protocol::ConnectRequest(_) | Protocol::SidrRequest(_) => return None,
    }
    Some(())
}

fn accepted(target: &Arc<IdInner>, params: &PeerParams, event: &mut CmEvent) {
    event.param = Param::Conn(ConnParam::of_peer(params));
    event.kind = match target.complete() {
        Ok(true) => CmEventKind::Established,
        Ok(false) => CmEventKind::ConnectResponse,
        Err(error) => {
            event.status = -error.errno();
            CmEventKind::ConnectError
        }
    };
}
