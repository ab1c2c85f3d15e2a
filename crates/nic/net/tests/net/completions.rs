//! Completions and connection events without a socket.

use std::os::fd::AsFd;
use std::time::Duration;

use roxie::cm::{CmEventKind, EventChannel, Id, PortSpace};
use roxie::transport::{Access, QpCap, QpType, RecvWr, SendFlags, SendWr, WcStatus, WrOp};
use roxie::verbs::{Context, Pd, Qp, QpInitAttr};
use roxie_net::tokio::{CmEvents, Completions};
use tokio::time::timeout;

use super::{ANY, device, on_tokio};

#[test]
fn completions_and_events_are_awaited() {
    on_tokio(async {
        let context = device();
        let pd = context.alloc_pd().expect("the engine starts");
        let (server_events, client_events) = (CmEvents::new().expect("fds"), CmEvents::new().expect("fds"));
        let listener = id(&context, &server_events);
        listener.bind_addr(ANY).expect("a free port");
        listener.listen(1).expect("it is bound");
        let client = id(&context, &client_events);
        let address = listener.local_addr().expect("it is bound");
        client.resolve_addr(None, address, Duration::from_secs(2)).expect("a local address");
        expect(&client_events, CmEventKind::AddrResolved).await;
        client.resolve_route().expect("the address is resolved");
        expect(&client_events, CmEventKind::RouteResolved).await;
        let completions = Completions::new(&context, 16).expect("a queue");
        let (a, b) = (qp(&pd, &completions), qp(&pd, &completions));
        client.attach_qp(&a).expect("it is new");
        client.connect(None, b"").expect("the route is resolved");
        let request = expect(&server_events, CmEventKind::ConnectRequest).await;
        request.attach_qp(&b).expect("it is new");
        request.accept(None, b"").expect("it is pending");
        expect(&client_events, CmEventKind::Established).await;

        // Nothing has completed: the wait is cancelled, and takes no completion with it.
        timeout(Duration::from_millis(5), completions.next()).await.expect_err("nothing was posted");
        let memory = pd.alloc_buffer(64, Access::LOCAL_WRITE).expect("memory");
        for n in 0..20 {
            b.post_recv(&RecvWr { wr_id: 100 + n, sg_list: &[memory.sge(0, 64)] }).expect("space");
            let (sg_list, flags) = (&[memory.sge(0, 8)], SendFlags::SIGNALED);
            a.post_send(&SendWr { wr_id: n, op: WrOp::Send, sg_list, flags, dest: None }).expect("space");
            let mut done = [completions.next().await, completions.next().await].map(|wc| {
                let wc = wc.expect("the reactor runs");
                assert_eq!(wc.status, WcStatus::Success);
                wc.wr_id
            });
            done.sort_unstable();
            assert_eq!(done, [n, 100 + n]);
        }
        client.disconnect().expect("it is connected");
        expect(&server_events, CmEventKind::Established).await;
        expect(&server_events, CmEventKind::Disconnected).await;
    });
}

#[test]
fn a_channel_is_a_descriptor_of_the_standard_library() {
    let channel = EventChannel::new().expect("a descriptor");
    let copy = channel.as_fd().try_clone_to_owned().expect("a descriptor");
    assert!(
        sys::poll(&mut [sys::PollFd::readable(std::os::fd::AsRawFd::as_raw_fd(&copy))], Some(0))
            .is_ok_and(|ready| ready == 0)
    );
}

fn id(context: &Context, events: &CmEvents) -> Id {
    Id::new(context, events.channel(), PortSpace::Tcp, 0).expect("the engine runs")
}

/// Waits for the next event, which must be of this kind; returns its identifier.
async fn expect(events: &CmEvents, kind: CmEventKind) -> Id {
    let event = events.next().await.expect("the reactor runs");
    assert_eq!(event.kind, kind, "status {}", event.status);
    event.id.clone()
}

fn qp(pd: &Pd, completions: &Completions) -> Qp {
    let cq = completions.cq();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
    pd.create_qp(&init).expect("within the limits")
}
