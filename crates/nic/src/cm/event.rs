//! What an application reads from its channel (rdma_get_cm_event(3)).

use std::sync::Arc;

use transport::AddressVector;
use transport::cm::{CmEventKind as Protocol, PeerParams};
use wire::{QKey, Qpn};

use super::id::{Id, IdInner};
use super::multicast::Join;

/// As a depth in [`ConnParam`]: as much as the device can (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH).
pub const DEPTH_MAX: u8 = 0xff;

/// `enum rdma_cm_event_type`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CmEventKind {
    /// The local address for a destination is known.
    AddrResolved = 0,
    /// It is not.
    AddrError = 1,
    /// The route is known.
    RouteResolved = 2,
    /// It is not.
    RouteError = 3,
    /// Somebody wants to connect.
    ConnectRequest = 4,
    /// The peer has accepted; only for ids without a QP, which go on with [`Id::establish`].
    ConnectResponse = 5,
    /// Our QP could not be moved.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer has refused; `status` is the reason.
    Rejected = 8,
    /// Both sides agree.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// A multicast group was joined.
    MulticastJoin = 12,
    /// It was not, or no longer is.
    MulticastError = 13,
    /// The address moved to another device.
    AddrChange = 14,
    /// No packet of the old connection can be about any more.
    TimewaitExit = 15,
    /// What was to be looked up is known ([`Id::report`]).
    AddrInfoResolved = 16,
    /// The program says something to itself ([`Id::report`]).
    User = 18,
}

/// Parameters of a connection: ours in calls, the peer's, seen from our side, in events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnParam {
    /// READs and atomics we serve at a time; [`DEPTH_MAX`]: as many as the device can.
    pub responder_resources: u8,
    /// READs and atomics we have outstanding at most; [`DEPTH_MAX`]: as many as the device can.
    pub initiator_depth: u8,
    /// Informational.
    pub flow_control: bool,
    /// Transport retries, 7 at most; ignored by [`Id::accept`].
    pub retry_count: u8,
    /// RNR retries of the peer's QP; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the QP uses an SRQ; ignored if the id has a QP.
    pub srq: bool,
    /// The QP; ignored if the id has one.
    pub qp_num: Qpn,
}

impl Default for ConnParam {
    /// What librdmacm takes when it gets no parameters.
    fn default() -> Self {
        Self {
            responder_resources: DEPTH_MAX,
            initiator_depth: DEPTH_MAX,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: Qpn::new(0),
        }
    }
}

impl ConnParam {
    pub(super) fn of_peer(params: &PeerParams) -> Self {
        Self {
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            flow_control: params.flow_control,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq,
            qp_num: params.qpn,
        }
    }

    /// No connection yet.
    pub(super) const NONE: Self = Self {
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: false,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: false,
        qp_num: Qpn::new(0),
    };
}

/// Where a UD service can be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UdParam {
    /// For an address handle.
    pub av: AddressVector,
    /// The QP.
    pub qp_num: Qpn,
    /// Its Q_Key.
    pub q_key: QKey,
}

/// The part of an event that depends on the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param {
    /// Connected services.
    Conn(ConnParam),
    /// Datagram services; also in requests, where nothing is known yet.
    Ud(UdParam),
    /// What the program gave with an event of its own.
    Own(u64),
}

/// One event. Dropping it acknowledges it: [`Id::destroy`] and [`Id::migrate`] wait for that.
#[derive(Debug)]
pub struct CmEvent {
    /// To whom it happened; in a request the new id.
    pub id: Id,
    /// In a request the listener.
    pub listen_id: Option<Id>,
    /// What happened.
    pub kind: CmEventKind,
    /// 0, a negative errno, or the positive reason of a rejection.
    pub status: i32,
    /// As long as the message has room, padded with zeros; empty in events without a message.
    pub private_data: Vec<u8>,
    /// Parameters of the peer, or of the group.
    pub param: Param,
    /// In events of a multicast group, the caller's name for the join.
    pub join: Option<u64>,
    pub(super) _receipt: Receipt,
}

/// Counts as an acknowledgement when it is dropped.
#[derive(Debug)]
pub(super) struct Receipt(pub(super) Arc<IdInner>);

impl Drop for Receipt {
    fn drop(&mut self) {
        self.0.acks.acknowledge();
    }
}

/// What happened to an identifier, before the application looks.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    AddrResolved,
    AddrError(i32),
    RouteResolved,
    DeviceRemoval,
    /// From the program itself.
    Own {
        kind: CmEventKind,
        status: i32,
        argument: u64,
    },
    /// A group may be talked to.
    Joined(Join),
    /// The protocol says.
    Cm(Protocol),
    /// To a listener.
    Request {
        child: Arc<IdInner>,
        params: PeerParams,
        private_data: Vec<u8>,
    },
}
