//! More connection requests at once than a listener's backlog: none waits for its peer to repeat it.

#[expect(dead_code, reason = "nobody asks for the port")]
#[path = "hostile/domain.rs"]
mod domain;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use roxie::cm::{CmEventKind, ConnParam, EventChannel, Id, PortSpace};
use roxie::verbs::{Context, Device, DeviceConfig};
use roxie::wire::Qpn;

const CLIENTS: u32 = 20;
/// Linux's and our time between a REQ and its repetition is 4.3 s.
const BEFORE_ANY_REPETITION: Duration = Duration::from_secs(4);

#[test]
fn a_burst_of_requests_gets_in_without_repetition() {
    domain::on_both_paths("a_burst_of_requests_gets_in_without_repetition", || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let channel = EventChannel::new().expect("a descriptor");
        let listener = Id::new(&context, &channel, PortSpace::Tcp, 0).expect("the engine starts");
        listener.bind_addr(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        listener.listen(1).expect("it is bound");
        let address = listener.local_addr().expect("it is bound");

        let begun = Instant::now();
        let clients: Vec<Id> = (0..CLIENTS).map(|n| connect(&context, address, n)).collect();
        for _ in &clients {
            let request = channel.get_event().expect("a request");
            assert_eq!(request.kind, CmEventKind::ConnectRequest);
            request.id.reject(b"").expect("it waits for an answer");
        }
        assert!(begun.elapsed() < BEFORE_ANY_REPETITION);
    });
}

/// Asks for a connection, with a QP number of its own and no QP.
fn connect(context: &Context, address: SocketAddr, n: u32) -> Id {
    let channel = EventChannel::new().expect("a descriptor");
    let id = Id::new(context, &channel, PortSpace::Tcp, 0).expect("the engine runs");
    id.resolve_addr(None, address, BEFORE_ANY_REPETITION).expect("a local address");
    assert_eq!(channel.get_event().expect("an event").kind, CmEventKind::AddrResolved);
    id.resolve_route().expect("the address is resolved");
    assert_eq!(channel.get_event().expect("an event").kind, CmEventKind::RouteResolved);
    let param = ConnParam { qp_num: Qpn::new(0x100 + n), ..ConnParam::default() };
    id.connect(Some(&param), b"").expect("the route is resolved");
    id
}
