//! Connects the two processes through the connection manager (REQ, REP, RTU).

use std::net::SocketAddr;
use std::time::Duration;

use roxie::cm::{CmEvent, CmEventKind, EventChannel, Id, PortSpace};
use roxie::verbs::Context;

use super::endpoint::{Endpoint, Remote};
use super::report::Report;
use crate::failure::{During, Failure, Outcome};

/// Time limit for address resolution; both processes are on this machine.
const RESOLVE_MAX: Duration = Duration::from_secs(2);

/// A connection; dropping it disconnects.
pub(super) struct Connection {
    id: Id,
    channel: EventChannel,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Fails if the peer has disconnected already, which is no error here.
        let _ = self.id.disconnect();
        self.id.destroy();
    }
}

/// Waits for the client; reports the port before that.
pub(super) fn accept(context: &Context, end: &Endpoint, address: SocketAddr) -> Outcome<Connection> {
    let channel = EventChannel::new().during("creating an event channel")?;
    let listener = id(context, &channel)?;
    listener.bind_addr(address).during("binding the address")?;
    listener.listen(1).during("listening")?;
    let port = listener.local_addr().map_or(0, |address| address.port());
    Report::Listening { port }.say()?;
    let id = expect(&channel, CmEventKind::ConnectRequest)?.id.clone();
    id.attach_qp(&end.qp).during("preparing the queue pair")?;
    end.expect_order()?;
    id.accept(None, &end.invitation()).during("accepting")?;
    let connection = Connection { id, channel };
    expect(&connection.channel, CmEventKind::Established)?;
    listener.destroy();
    Ok(connection)
}

/// Connects to the server.
pub(super) fn connect(
    context: &Context,
    end: &Endpoint,
    address: SocketAddr,
) -> Outcome<(Connection, Remote)> {
    let channel = EventChannel::new().during("creating an event channel")?;
    let id = id(context, &channel)?;
    id.resolve_addr(None, address, RESOLVE_MAX).during("resolving the address")?;
    expect(&channel, CmEventKind::AddrResolved)?;
    id.resolve_route().during("resolving the route")?;
    expect(&channel, CmEventKind::RouteResolved)?;
    id.attach_qp(&end.qp).during("preparing the queue pair")?;
    id.connect(None, &[]).during("connecting")?;
    let connection = Connection { id, channel };
    let event = expect(&connection.channel, CmEventKind::Established)?;
    let remote = Remote::decode(&event.private_data)?;
    Ok((connection, remote))
}

fn id(context: &Context, channel: &EventChannel) -> Outcome<Id> {
    Id::new(context, channel, PortSpace::Tcp, 0).during("creating a connection identifier")
}

fn expect(channel: &EventChannel, wanted: CmEventKind) -> Outcome<CmEvent> {
    let event = channel.get_event().during("waiting for the connection manager")?;
    if event.kind == wanted {
        return Ok(event);
    }
    Err(Failure::new(format!("connecting: {:?} (status {}) instead of {wanted:?}", event.kind, event.status)))
}
