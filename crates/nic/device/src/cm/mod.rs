//! Connection management with the semantics of librdmacm (rdma_cm(7)), on top of [`transport::cm`].
//!
//! An [`Id`] is bound, resolved, and then listens or connects. The application reads its events from its
//! [`EventChannel`]. QPs change their state at the same points as in librdmacm: inside
//! [`EventChannel::get_event`] when the peer has accepted, and inside [`Id::accept`] before the peer is told.
//! MADs travel on QP1 of the engine; `driver.rs` describes the order of locks between the two.
//!
//! # Example
//! A listener and a client in one process, on loopback: the client connects and sends one message.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use roxie::cm::{CmEvent, CmEventKind, EventChannel, Id, PortSpace};
//! use roxie::registry::DomainConfig;
//! use roxie::transport::{Access, QpCap, QpType, RecvWr, SendFlags, SendWr, Wc, WcStatus, WrOp};
//! use roxie::verbs::{Cq, Device, DeviceConfig, QpInitAttr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The device on `lo`, in a domain of its own: other processes use UDP port 4791.
//! let config = DeviceConfig {
//!     netdev: Some("lo".to_owned()),
//!     domain: DomainConfig::parse("cm-example:14792"),
//!     ..DeviceConfig::default()
//! };
//! let context = Device::open(&config)?.context()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16, None, 0)?;
//! let init = QpInitAttr {
//!     ty: QpType::Rc,
//!     send_cq: cq.clone(),
//!     recv_cq: cq.clone(),
//!     srq: None,
//!     cap: QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
//!     sq_sig_all: false,
//!     cookie: 0,
//! };
//!
//! // The server listens on a free port.
//! let server_events = EventChannel::new()?;
//! let listener = Id::new(&context, &server_events, PortSpace::Tcp, 0)?;
//! listener.bind_addr(SocketAddr::from(([127, 0, 0, 1], 0)))?;
//! listener.listen(1)?;
//! let address = listener.local_addr().ok_or("the listener is bound")?;
//!
//! // The client resolves the address and sends its request.
//! let client_events = EventChannel::new()?;
//! let client = Id::new(&context, &client_events, PortSpace::Tcp, 0)?;
//! client.resolve_addr(None, address, Duration::from_secs(2))?;
//! expect(&client_events, CmEventKind::AddrResolved)?;
//! client.resolve_route()?;
//! expect(&client_events, CmEventKind::RouteResolved)?;
//! let client_qp = pd.create_qp(&init)?;
//! client.attach_qp(&client_qp)?;
//! client.connect(None, b"private data")?;
//!
//! // The server posts a receive before it accepts.
//! let request = expect(&server_events, CmEventKind::ConnectRequest)?;
//! assert!(request.private_data.starts_with(b"private data"));
//! let server = request.id.clone();
//! let (server_qp, target) = (pd.create_qp(&init)?, pd.alloc_buffer(64, Access::LOCAL_WRITE)?);
//! server.attach_qp(&server_qp)?;
//! server_qp.post_recv(&RecvWr { wr_id: 1, sg_list: &[target.sge(0, 64)] })?;
//! server.accept(None, &[])?;
//! expect(&client_events, CmEventKind::Established)?;
//! expect(&server_events, CmEventKind::Established)?;
//!
//! // One message.
//! let source = pd.alloc_buffer(64, Access::empty())?;
//! source.write(0, b"hello");
//! let (sg_list, flags) = (&[source.sge(0, 5)], SendFlags::SIGNALED);
//! client_qp.post_send(&SendWr { wr_id: 2, op: WrOp::Send, sg_list, flags, dest: None })?;
//! let mut done = [wait(&cq)?.wr_id, wait(&cq)?.wr_id];
//! done.sort_unstable();
//! assert_eq!(done, [1, 2]);
//! let mut bytes = [0; 5];
//! target.read(0, &mut bytes);
//! assert_eq!(&bytes, b"hello");
//!
//! client.disconnect()?;
//! expect(&server_events, CmEventKind::Disconnected)?;
//! # Ok(())
//! # }
//!
//! /// Waits for the next event, which must be of this kind.
//! fn expect(channel: &EventChannel, kind: CmEventKind) -> Result<CmEvent, Box<dyn std::error::Error>> {
//!     let event = channel.get_event()?;
//!     if event.kind != kind {
//!         return Err(format!("{:?}, status {}", event.kind, event.status).into());
//!     }
//!     Ok(event)
//! }
//!
//! /// Polls until there is a completion.
//! fn wait(cq: &Cq) -> Result<Wc, String> {
//!     loop {
//!         match cq.poll_one() {
//!             Some(wc) if wc.status == WcStatus::Success => return Ok(wc),
//!             Some(wc) => return Err(format!("{:?}", wc.status)),
//!             None => std::hint::spin_loop(),
//!         }
//!     }
//! }
//! ```

mod acks;
mod address;
mod channel;
mod connect;
mod driver;
mod event;
mod failure;
mod host;
mod id;
mod keepalive;
mod listen;
mod multicast;
mod netdev;
mod option;
mod pace;
mod place;
mod port;
mod qp;
mod resolve;
mod state;
mod status;

#[cfg(test)]
mod tests;

pub use channel::EventChannel;
pub use event::{CmEvent, CmEventKind, ConnParam, DEPTH_MAX, Param, UdParam};
pub(crate) use host::solicit;
pub use id::{HOP_LIMIT, Id, PathInfo};
pub(crate) use listen::{RequestHost, RequestTarget};
pub use place::Devices;
pub use port::PortSpace;
pub(crate) use port::SharedPorts;
pub use transport::cm::UDP_QKEY;

pub(crate) use driver::{CmDriver, CmLocks};
pub(crate) use keepalive::interval_from_env;
pub(crate) use resolve::Path;
pub(crate) use transport::cm::MadOutcome;

use transport::{VerbsError, refuse};

/// The refusal of a call that is not allowed in this phase of an identifier; the last argument says which
/// phase the call needs.
macro_rules! out_of_phase {
    ($phase:expr, $needs:literal) => {{
        let phase = $phase;
        transport::refuse!(EINVAL, "identifier", "state"; phase as crate::cm::state::Phase;
            "the identifier {phase}"; $needs)
    }};
}
use out_of_phase;

/// The refusal of a call that needs a connection.
#[cold]
fn no_connection() -> VerbsError {
    let handle = 0;
    refuse!(EINVAL, "identifier", "connection"; handle; "the identifier never had a connection")
}
