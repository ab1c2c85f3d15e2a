//! More simultaneous connection requests than a listener's backlog: no request needs a retransmission.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use roxie::cm::{CmEventKind, ConnParam, EventChannel, Id, PortSpace};
use roxie::verbs::{Context, Device, DeviceConfig};
use roxie::wire::Qpn;

const CLIENTS: u32 = 20;
/// Less than the retransmission timeout of a REQ in Linux and here, 4.6 s.
const RETRANSMIT_MIN: Duration = Duration::from_secs(4);

#[test]
fn a_burst_of_requests_is_accepted_without_retransmissions() {
    domain::on_both_paths("a_burst_of_requests_is_accepted_without_retransmissions", || {
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
            request.id.reject(b"").expect("it is pending");
        }
        assert!(begun.elapsed() < RETRANSMIT_MIN);
    });
}

/// Requests a connection for a QPN without a QP.
fn connect(context: &Context, address: SocketAddr, n: u32) -> Id {
    let channel = EventChannel::new().expect("a descriptor");
    let id = Id::new(context, &channel, PortSpace::Tcp, 0).expect("the engine runs");
    id.resolve_addr(None, address, RETRANSMIT_MIN).expect("a local address");
    assert_eq!(channel.get_event().expect("an event").kind, CmEventKind::AddrResolved);
    id.resolve_route().expect("the address is resolved");
    assert_eq!(channel.get_event().expect("an event").kind, CmEventKind::RouteResolved);
    let param = ConnParam { qp_num: Qpn::new(0x100 + n), ..ConnParam::default() };
    id.connect(Some(&param), b"").expect("the route is resolved");
    id
}
