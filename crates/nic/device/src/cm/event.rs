//! Events that an application reads from its channel (rdma_get_cm_event(3)).

use std::sync::Arc;

use transport::AddressVector;
use transport::cm::{CmEventKind as Protocol, PeerParams};
use wire::{QKey, Qpn};

use super::id::{Id, IdInner};
use super::multicast::Join;

/// In [`ConnParam`]: the largest depth of the device (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH).
pub const DEPTH_MAX: u8 = 0xff;

/// `enum rdma_cm_event_type`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CmEventKind {
    /// The address of the destination was resolved.
    AddrResolved = 0,
    /// The address could not be resolved.
    AddrError = 1,
    /// The route was resolved.
    RouteResolved = 2,
    /// The route could not be resolved.
    RouteError = 3,
    /// A client requests a connection.
    ConnectRequest = 4,
    /// The peer has accepted; only for ids without a QP, which continue with [`Id::establish`].
    ConnectResponse = 5,
    /// The QP could not change its state.
    ConnectError = 6,
    /// The peer does not answer (`-ETIMEDOUT`), or no process of its host has the port (`-ECONNREFUSED`).
    Unreachable = 7,
    /// The peer has refused; `status` is the reason.
    Rejected = 8,
    /// The connection is established.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device was removed.
    DeviceRemoval = 11,
    /// The id has joined a multicast group.
    MulticastJoin = 12,
    /// The id could not join the multicast group, or is no longer a member.
    MulticastError = 13,
    /// The bond with the local address has failed over and has another MAC. A hint: connections may go on.
    AddrChange = 14,
    /// The TIMEWAIT state of the connection has ended.
    TimewaitExit = 15,
    /// An address lookup by name has ended; raised by the program with [`Id::report`].
    AddrInfoResolved = 16,
    /// An event of the program itself, raised with [`Id::report`].
    User = 18,
}

/// Parameters of a connection: the local ones in calls, the peer's in events, seen from the local side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnParam {
    /// READs and atomics in flight that this side serves; [`DEPTH_MAX`] selects the device's limit.
    pub responder_resources: u8,
    /// READs and atomics that this side has in flight at most; [`DEPTH_MAX`] selects the device's limit.
    pub initiator_depth: u8,
    /// Informational.
    pub flow_control: bool,
    /// Transport retries, at most 7; ignored by [`Id::accept`].
    pub retry_count: u8,
    /// RNR retries of the peer's QP; 7 means no limit.
    pub rnr_retry_count: u8,
    /// True if the QP uses an SRQ; ignored if the id has a QP.
    pub srq: bool,
    /// Number of the QP; ignored if the id has a QP.
    pub qp_num: Qpn,
}

impl Default for ConnParam {
    /// The values that librdmacm uses if it gets no parameters.
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

    /// Parameters of events without a connection.
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

/// Address of a UD service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UdParam {
    /// Address vector for an address handle.
    pub av: AddressVector,
    /// QPN of the service.
    pub qp_num: Qpn,
    /// Q_Key of the service.
    pub q_key: QKey,
}

/// The part of an event that depends on the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param {
    /// Parameters of a connected service.
    Conn(ConnParam),
    /// Address of a datagram service; without valid content in requests.
    Ud(UdParam),
    /// The argument of [`Id::report`].
    Own(u64),
}

/// An event. Dropping it acknowledges it: [`Id::destroy`] and [`Id::migrate`] wait for that.
#[derive(Debug)]
pub struct CmEvent {
    /// The identifier of the event; in a request the new one.
    pub id: Id,
    /// In a request the listener.
    pub listen_id: Option<Id>,
    /// The kind of event.
    pub kind: CmEventKind,
    /// 0, a negative errno, or the positive reason of a rejection.
    pub status: i32,
    /// Private data, padded with zeros to the length of the message's field; empty in events without a
    /// message.
    pub private_data: Vec<u8>,
    /// Parameters of the peer or the multicast group.
    pub param: Param,
    /// In events of a multicast group, the cookie of the join.
    pub join: Option<u64>,
    pub(super) _receipt: Receipt,
}

/// Acknowledges an event when it is dropped.
#[derive(Debug)]
pub(super) struct Receipt(pub(super) Arc<IdInner>);

impl Drop for Receipt {
    fn drop(&mut self) {
        self.0.acks.acknowledge();
    }
}

/// An event of an identifier before the application reads it.
#[derive(Clone, Debug)]
pub(super) enum RawEvent {
    AddrResolved,
    AddrError(i32),
    RouteResolved,
    DeviceRemoval,
    AddrChange,
    /// Raised by the program itself.
    User {
        kind: CmEventKind,
        status: i32,
        argument: u64,
    },
    /// The id may send to a multicast group.
    Joined(Join),
    /// An event of the protocol.
    Cm(Protocol),
    /// A request to a listener.
    Request {
        child: Arc<IdInner>,
        params: Option<PeerParams>,
        private_data: Vec<u8>,
    },
}
