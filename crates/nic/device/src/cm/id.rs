//! Identifiers, the sockets of RDMA (rdma_create_id(3), rdma_destroy_id(3), rdma_migrate_id(3)).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use sys::Route;
use transport::cm::{CmEventKind as Protocol, CmId, PeerParams};
use transport::{AddressVector, PathMtu, QpType, VerbsError, refuse};
use wire::Gid;

use super::acks::Acks;
use super::channel::{EventChannel, Queue, Unread, take_unread};
use super::driver::PlacedId;
use super::event::{CmEventKind, ConnParam, Param, RawEvent, Receipt, UdParam};
use super::host::Host;
use super::listen::unlisten;
use super::out_of_phase;
use super::place::{Devices, Of, Place, Places};
use super::port::PortSpace;
use super::state::{IdState, Phase};
use crate::gid::GidTable;
use crate::verbs::{Context, Qp};

/// Time to live of packets: Linux's default for routes.
pub const HOP_LIMIT: u8 = 64;

/// An RDMA communication identifier. This is a handle; the identifier ends with [`destroy`](Self::destroy) or
/// with its last handle.
#[derive(Clone)]
pub struct Id(pub(super) Arc<IdInner>);

pub(super) struct IdInner {
    /// Where the identifier looks for its device; `None` if it was made for one.
    pub(super) places: Option<Box<dyn Places>>,
    /// The device; before it is known, the device with the port.
    place: RwLock<Option<Place>>,
    pub(super) port_space: PortSpace,
    pub(super) qp_type: QpType,
    /// Tells it from the other identifiers of the process.
    number: u32,
    cookie: AtomicU64,
    channel: Mutex<Arc<Queue>>,
    pub(super) acks: Acks,
    pub(super) state: Mutex<IdState>,
}

fn check_service(port_space: PortSpace, qp_type: QpType) -> Result<(), VerbsError> {
    if qp_type.is_datagram() == port_space.is_datagram() {
        return Ok(());
    }
    Err(refuse!(EINVAL, "identifier", "qp_type"; qp_type as QpType;
        is "{qp_type}; RDMA_PS_UDP takes UD queue pairs, the other port spaces take connected ones"))
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cold]
fn destroyed() -> VerbsError {
    out_of_phase!(Phase::Destroyed, "the call needs another")
}

/// Initial state of a listener's child.
pub(super) struct ChildInit {
    pub(super) cm_id: CmId,
    pub(super) local: Gid,
    /// The GIDs of both ends, for packets.
    pub(super) path: (Gid, Gid),
    pub(super) port: u16,
    pub(super) peer: Gid,
    pub(super) peer_port: u16,
    /// `None` in a request to a datagram service.
    pub(super) params: Option<PeerParams>,
}

/// The path of a resolved identifier, as `struct rdma_route` shows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PathInfo {
    /// Local GID.
    pub sgid: Gid,
    /// Index of the local GID.
    pub sgid_index: u8,
    /// The peer's GID.
    pub dgid: Gid,
    /// Largest path MTU of the netdev.
    pub mtu: PathMtu,
    /// Time to live.
    pub hop_limit: u8,
    /// Type of service.
    pub traffic_class: u8,
    /// Packet life time n: 4.096 us * 2^n.
    pub packet_life_time: u8,
}

impl Id {
    /// Creates an identifier with events on `channel`. The caller chooses `cookie`.
    ///
    /// # Errors
    /// The errors of starting the device's engine.
    pub fn new(
        context: &Context,
        channel: &EventChannel,
        port_space: PortSpace,
        cookie: u64,
    ) -> io::Result<Self> {
        Self::of_service(context, channel, port_space, port_space.qp_type(), cookie)
    }

    /// As [`new`](Self::new), for QPs of one type. A port space of connections supports RC, UC and XRC.
    ///
    /// # Errors
    /// The errors of starting the device's engine; `EINVAL` if only one of port space and QP type is for
    /// datagrams.
    pub fn of_service(
        context: &Context,
        channel: &EventChannel,
        port_space: PortSpace,
        qp_type: QpType,
        cookie: u64,
    ) -> io::Result<Self> {
        check_service(port_space, qp_type)?;
        let place = Place { host: context.device().engine()?, context: Some(context.clone()) };
        Ok(Self::with_place(None, Some(place), channel, (port_space, qp_type), cookie))
    }

    /// Creates an identifier that chooses its device by its addresses. No device is used before.
    ///
    /// # Errors
    /// `EINVAL` if only one of port space and QP type is for datagrams.
    pub fn of_any(
        devices: Arc<dyn Devices>,
        channel: &EventChannel,
        port_space: PortSpace,
        qp_type: QpType,
        cookie: u64,
    ) -> Result<Self, VerbsError> {
        check_service(port_space, qp_type)?;
        let places = Some(Box::new(Of(devices)) as _);
        Ok(Self::with_place(places, None, channel, (port_space, qp_type), cookie))
    }

    pub(super) fn with_place(
        places: Option<Box<dyn Places>>,
        place: Option<Place>,
        channel: &EventChannel,
        (port_space, qp_type): (PortSpace, QpType),
        cookie: u64,
    ) -> Self {
        let random = place.as_ref().map_or_else(sys::random_u64, |place| place.host.random_u64());
        let state = Mutex::new(IdState::new(random));
        Self(Arc::new(IdInner {
            places,
            place: RwLock::new(place),
            port_space,
            qp_type,
            number: next_number(),
            cookie: AtomicU64::new(cookie),
            channel: Mutex::new(Arc::clone(&channel.0)),
            acks: Acks::default(),
            state,
        }))
    }

    /// Returns the caller's cookie. A child has the cookie of its listener until
    /// [`set_cookie`](Self::set_cookie).
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.0.cookie.load(Ordering::Relaxed)
    }

    /// Changes the cookie.
    pub fn set_cookie(&self, cookie: u64) {
        self.0.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Returns the port space.
    #[must_use]
    pub fn port_space(&self) -> PortSpace {
        self.0.port_space
    }

    /// Returns the type of its QP.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.0.qp_type
    }

    /// Returns the context, once an address has determined the device.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        let known = self.0.lock().local.is_some();
        self.0.place().filter(|_| known)?.context
    }

    /// Returns the local address and port.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.lock().src
    }

    /// Returns the peer's address and port.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.lock().dst
    }

    /// Returns the resolved path.
    #[must_use]
    pub fn path(&self) -> Option<PathInfo> {
        let state = self.0.lock();
        let (sgid, dgid) = (state.local?, state.peer.unwrap_or(Gid::ZERO));
        let gids = self.0.place()?.host.gids();
        Some(PathInfo {
            sgid,
            sgid_index: gids.index_of(&sgid)?,
            dgid,
            mtu: gids.active_mtu(),
            hop_limit: HOP_LIMIT,
            traffic_class: state.tos,
            packet_life_time: transport::cm::timing::PACKET_LIFE_TIME,
        })
    }

    /// Returns the QP given to [`attach_qp`](Self::attach_qp).
    #[must_use]
    pub fn qp(&self) -> Option<Qp> {
        self.0.lock().qp.clone()
    }

    /// Puts an event of the program itself into the channel (rdma_write_cm_event(3)).
    ///
    /// # Errors
    /// `EINVAL` after [`destroy`](Self::destroy).
    pub fn report(&self, kind: CmEventKind, status: i32, argument: u64) -> Result<(), VerbsError> {
        if self.0.lock().phase == Phase::Destroyed {
            return Err(destroyed());
        }
        self.0.push(RawEvent::User { kind, status, argument });
        Ok(())
    }

    /// Ends the identifier: disconnects or rejects the peer, drops unread events (rejecting unread requests),
    /// and waits until the application has acknowledged all events that it has read.
    pub fn destroy(&self) {
        self.destroy_or_say(Duration::ZERO, |_| {});
    }

    /// As [`destroy`](Self::destroy); calls `say` with the number of unacknowledged events if there are some
    /// after `timeout`.
    pub fn destroy_or_say(&self, timeout: Duration, say: impl FnOnce(u64)) {
        self.0.end();
        self.0.flush();
        match self.0.acks.left_after(timeout) {
            0 => return,
            left => say(left),
        }
        self.0.acks.wait();
    }

    /// True if the events of the identifier are those of `channel`.
    #[must_use]
    pub fn is_on(&self, channel: &EventChannel) -> bool {
        Arc::ptr_eq(&self.0.queue(), &channel.0)
    }

    /// Moves the identifier and its unread events to another channel. First waits until the application has
    /// acknowledged the events read from the old channel.
    ///
    /// # Errors
    /// `EINVAL` after [`destroy`](Self::destroy).
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), VerbsError> {
        if self.0.lock().phase == Phase::Destroyed {
            return Err(destroyed());
        }
        self.0.acks.wait();
        let mut current = self.0.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, Arc::clone(&channel.0));
        for unread in take_unread(&old, |unread| self.0.is(unread)) {
            channel.0.push(unread);
        }
        Ok(())
    }
}

impl PartialEq for Id {
    /// True for handles of the same identifier.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Id {}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for IdInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Id")
            .field("port_space", &self.port_space)
            .field("phase", &state.phase)
            .field("src", &state.src)
            .field("dst", &state.dst)
            .finish_non_exhaustive()
    }
}

impl Drop for IdInner {
    fn drop(&mut self) {
        self.end();
        // The next poll of any thread sends the remaining output. This thread cannot: it may already be
        // inside the driver.
        if let Some(Place { host, .. }) = self.place() {
            host.wake_before(host.driver().poll_timeout());
        }
    }
}

impl IdInner {
    /// Creates the identifier of a request. It shares the listener's channel and cookie.
    pub(super) fn child(listener: &Arc<Self>, place: Place, init: ChildInit) -> Arc<Self> {
        let mut state = IdState::new(place.host.random_u64());
        state.phase = Phase::Connect;
        state.cm_id = Some(init.cm_id);
        state.src = Some(SocketAddr::new(init.local.ip(), init.port));
        state.dst = Some(SocketAddr::new(init.peer.ip(), init.peer_port));
        state.local = Some(init.path.0);
        state.bond_mac = place.host.gids().bond_mac(&init.path.0);
        state.peer = Some(init.path.1);
        state.silent = true;
        if let Some(params) = init.params {
            state.responder_resources = params.responder_resources;
            state.initiator_depth = params.initiator_depth;
        }
        Arc::new(Self {
            places: None,
            place: RwLock::new(Some(place)),
            port_space: listener.port_space,
            qp_type: listener.qp_type,
            number: next_number(),
            cookie: AtomicU64::new(listener.cookie.load(Ordering::Relaxed)),
            channel: Mutex::new(listener.queue()),
            acks: Acks::default(),
            state: Mutex::new(state),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, IdState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the device that has the identifier's port, for calls that need an address.
    pub(super) fn host(&self) -> Result<Arc<dyn Host>, VerbsError> {
        let unbound = || out_of_phase!(Phase::Idle, "the call needs an address");
        self.place().map(|place| place.host).ok_or_else(unbound)
    }

    /// Sets the local address, with which the identifier is one of the device.
    pub(super) fn set_local(self: &Arc<Self>, state: &mut IdState, local: Gid) -> Result<(), VerbsError> {
        let (host, id) = (self.host()?, Arc::downgrade(self));
        state.local = Some(local);
        state.bond_mac = host.gids().bond_mac(&local);
        host.driver().with(|driver| driver.placed.insert(self.key(), id));
        Ok(())
    }

    fn key(&self) -> PlacedId {
        std::ptr::from_ref(self).addr()
    }

    /// Returns what `wanted` says of the first device for which it says something, and makes that the device
    /// of the identifier; `None` if there is no such device.
    pub(super) fn choose<T>(
        &self,
        mut wanted: impl FnMut(&GidTable) -> Option<T>,
    ) -> Result<Option<T>, VerbsError> {
        let Some(places) = &self.places else { return Ok(wanted(&self.host()?.gids())) };
        let mut found = None;
        if let Some(place) = places.find(&mut |gids| {
            found = wanted(gids);
            found.is_some()
        })? {
            let before = self.place.write().unwrap_or_else(PoisonError::into_inner).replace(place);
            if let Some(before) = before {
                before.host.driver().with(|driver| driver.placed.remove(&self.key()));
            }
        }
        Ok(found)
    }

    pub(super) fn route(&self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> io::Result<Route> {
        match (&self.places, self.place()) {
            (Some(places), _) => places.route(dst, src, oif),
            (None, Some(place)) => place.host.route(dst, src, oif),
            (None, None) => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    /// Sends the output of a call, and schedules the next timer.
    pub(super) fn flush(&self) {
        if let Some(Place { host, .. }) = self.place() {
            let driver = host.driver();
            driver.poll(host.now(), host.link());
            host.wake_before(driver.poll_timeout());
        }
    }

    /// Counts an event as read.
    pub(super) fn report(self: &Arc<Self>) -> Receipt {
        self.acks.report();
        Receipt(Arc::clone(self))
    }

    /// Puts an event into the channel. One that reports a new state is put there under the lock of the state:
    /// otherwise it could follow the event of the device's removal.
    pub(super) fn push(self: &Arc<Self>, raw: RawEvent) {
        let queue = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(Unread { target: Arc::downgrade(self), raw });
    }

    /// Handles an event of the driver; the channel gets what librdmacm passes on (Linux cma.c
    /// cma_ib_handler).
    pub(super) fn deliver(self: &Arc<Self>, raw: RawEvent) {
        let mut state = self.lock();
        let wanted = match &raw {
            _ if state.phase == Phase::DeviceRemoval => false,
            RawEvent::Request { .. } => state.phase == Phase::Listen,
            RawEvent::Cm(Protocol::TimewaitExit) => state.phase == Phase::Disconnect,
            RawEvent::Cm(_) => state.phase == Phase::Connect,
            RawEvent::AddrResolved
            | RawEvent::AddrError(_)
            | RawEvent::RouteResolved
            | RawEvent::Joined(_)
            | RawEvent::DeviceRemoval
            | RawEvent::AddrChange
            | RawEvent::User { .. } => true,
        };
        if !wanted || state.silent {
            return;
        }
        if matches!(raw, RawEvent::Cm(Protocol::Disconnected { .. })) {
            state.phase = Phase::Disconnect;
        }
        self.push(raw);
    }

    /// True for a connection request that has neither a QP nor an answer yet.
    pub(super) fn is_pending_request(&self) -> bool {
        let state = self.lock();
        state.phase == Phase::Connect && state.qp.is_none() && state.silent && !state.is_rejected
    }

    /// Tells the readers that wait until a request is handled.
    pub(super) fn notify_handled(&self) {
        if let Some(place) = self.place() {
            place.host.driver().handled().notify();
        }
    }

    /// Waits for a moment, or until a request is handled.
    pub(super) fn wait_for_handled(&self) {
        if let Some(place) = self.place() {
            place.host.driver().handled().wait();
        }
    }

    pub(super) fn request_taken(&self) {
        if let (Some(cm_id), Some(place)) = (self.lock().cm_id, self.place()) {
            place.host.driver().with(|state| state.cm.request_taken(cm_id));
        }
    }

    pub(super) fn request_param(&self, params: Option<&PeerParams>) -> Param {
        if self.qp_type == QpType::Ud {
            let av = self.address_vector();
            let qp_num = wire::Qpn::new(0);
            Param::Ud(UdParam { av, qp_num, q_key: wire::QKey(0) })
        } else {
            Param::Conn(params.map_or(ConnParam::NONE, ConnParam::of_peer))
        }
    }

    /// Returns the address vector of the peer.
    pub(super) fn address_vector(&self) -> AddressVector {
        let state = self.lock();
        let (local, peer) = (state.local.unwrap_or(Gid::ZERO), state.peer.unwrap_or(Gid::ZERO));
        AddressVector {
            dgid: peer,
            sgid_index: self.place().and_then(|place| place.host.gids().index_of(&local)).unwrap_or(0),
            hop_limit: HOP_LIMIT,
            traffic_class: state.tos,
            flow_label: 0,
            sl: 0,
        }
    }

    fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is(&self, unread: &Unread) -> bool {
        std::ptr::eq(unread.target.as_ptr(), self)
    }

    /// Removes the identifier from the tables; does nothing the second time.
    pub(super) fn end(&self) {
        self.leave_all();
        let mut state = self.lock();
        if state.phase == Phase::Destroyed {
            return;
        }
        state.phase = Phase::Destroyed;
        let (cm_id, listeners) = (state.cm_id.take(), std::mem::take(&mut state.listeners));
        let (bound, qp) = (state.bound.take(), state.qp.take());
        drop(state);
        unlisten(listeners);
        if let Some(Place { host, .. }) = self.place() {
            let now = host.now();
            host.driver().with(|driver| {
                driver.placed.remove(&self.key());
                if let Some(cm_id) = cm_id {
                    driver.cm.destroy(now, cm_id);
                    driver.ids.remove(&cm_id);
                }
            });
        }
        // Unread requests own children; dropping them rejects the requests.
        drop(take_unread(&self.queue(), |unread| self.is(unread)));
        drop((bound, qp));
        self.notify_handled();
    }
}
