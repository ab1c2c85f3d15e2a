//! Service id resolution: request, reply, repetition and refusal (IBA 12.11).

use super::*;
use wire::QKey;

fn listening() -> Net {
    let mut net = Net::new();
    let service_id = ServiceId::from_port(ServiceId::UDP, PORT);
    let address = ListenAddress::AnyV4;
    net.cm[B].listen(ListenParams { service_id, address, backlog: 0, transport: Transport::Rc }).unwrap();
    net
}

fn ask(net: &mut Net) -> CmId {
    let params = SidrParams {
        service_id: ServiceId::from_port(ServiceId::UDP, PORT),
        path: net.path(),
        private_data: b"ask",
    };
    let id = net.cm[A].sidr_connect(net.now, &params).unwrap();
    net.run();
    id
}

fn reply(status: SidrStatus) -> SidrAnswer<'static> {
    SidrAnswer { status, qpn: Qpn::new(0x789), q_key: UDP_QKEY, private_data: b"me" }
}

#[test]
fn a_sidr_req_gets_a_sidr_rep() {
    let mut net = listening();
    let a = ask(&mut net);
    let CmEvent { id: b, kind: CmEventKind::SidrRequest(request) } = net.event(B).unwrap() else { panic!() };
    assert_eq!((request.peer, request.peer_port), (net.gid[A], 45678));
    assert_eq!(&request.private_data[..4], b"ask\0");
    net.cm[B].sidr_reply(b, &reply(SidrStatus::SUCCESS)).unwrap();
    assert!(net.cm[B].sidr_reply(b, &reply(SidrStatus::SUCCESS)).is_err(), "twice");
    net.run();
    let CmEvent { id, kind: CmEventKind::SidrResponse(response) } = net.event(A).unwrap() else { panic!() };
    assert_eq!((id, response.status, response.qpn), (a, SidrStatus::SUCCESS, Qpn::new(0x789)));
    assert_eq!(response.q_key, QKey(0x0123_4567));
    assert_eq!(&response.private_data[..3], b"me\0");
    net.assert_quiet();
    net.repeat_last(B, "SIDR_REP");
    net.assert_quiet();
}

#[test]
fn nobody_listens() {
    let mut net = Net::new();
    ask(&mut net);
    let CmEventKind::SidrResponse(response) = net.event(A).unwrap().kind else { panic!() };
    assert_eq!(response.status, SidrStatus::UNSUPPORTED);
}

#[test]
fn destroying_the_question_at_the_server_refuses_it() {
    let mut net = listening();
    ask(&mut net);
    let b = net.event(B).unwrap().id;
    net.cm[B].destroy(net.now, b);
    net.run();
    let CmEventKind::SidrResponse(response) = net.event(A).unwrap().kind else { panic!() };
    assert_eq!(response.status, SidrStatus::REJECT);
    net.assert_quiet();
}

#[test]
fn a_question_is_repeated_15_times() {
    let mut net = listening();
    net.lose.push((A, "SIDR_REQ", u32::MAX));
    ask(&mut net);
    assert!(matches!(net.wait_event(A).kind, CmEventKind::Unreachable { is_refused: false }));
    assert_eq!(net.log.len(), 16);
    assert_eq!(net.now_ms(), 16 * 4096);
    net.assert_quiet();
}

#[test]
fn either_message_may_be_lost() {
    for (side, name) in [(A, "SIDR_REQ"), (B, "SIDR_REP")] {
        let mut net = listening();
        net.lose.push((side, name, 1));
        ask(&mut net);
        for _ in 0..2 {
            if let Some(event) = net.event(B) {
                net.cm[B].sidr_reply(event.id, &reply(SidrStatus::SUCCESS)).unwrap();
                net.run();
            }
            if name == "SIDR_REP" || net.log.len() == 1 {
                net.step();
            }
        }
        while let Some(event) = net.event(B) {
            net.cm[B].sidr_reply(event.id, &reply(SidrStatus::SUCCESS)).unwrap();
            net.run();
        }
        assert!(matches!(net.event(A).unwrap().kind, CmEventKind::SidrResponse(_)), "{name}");
    }
}

#[test]
fn a_repeated_sidr_req_is_reported_once_until_the_sidr_rep() {
    let mut net = listening();
    ask(&mut net);
    let b = net.event(B).unwrap().id;
    net.repeat_last(A, "SIDR_REQ");
    assert!(net.event(B).is_none());
    net.cm[B].sidr_reply(b, &reply(SidrStatus::SUCCESS)).unwrap();
    net.run();
    net.repeat_last(A, "SIDR_REQ");
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::SidrRequest(_)), "a new SIDR_REQ");
}

#[test]
fn destroying_the_asking_side_is_silent() {
    let mut net = listening();
    let a = ask(&mut net);
    net.log.clear();
    net.cm[A].destroy(net.now, a);
    net.run();
    assert!(net.log.is_empty());
    assert_eq!(net.cm[A].poll_timeout(), None);
}

#[test]
fn private_data_goes_up_to_the_limit() {
    const BYTES: [u8; 256] = [0x5a; 256];
    let mut net = listening();
    ask(&mut net);
    let b = net.event(B).unwrap().id;
    let service_id = ServiceId::from_port(ServiceId::UDP, PORT);
    for (len, fits) in [(SIDR_REQ_PRIVATE_MAX, true), (SIDR_REQ_PRIVATE_MAX + 1, false), (256, false)] {
        let params = SidrParams { service_id, path: net.path(), private_data: &BYTES[..len] };
        assert_eq!(net.cm[A].sidr_connect(net.now, &params).is_ok(), fits, "{len}");
    }
    for (len, fits) in [(SIDR_REP_PRIVATE_MAX + 1, false), (256, false), (SIDR_REP_PRIVATE_MAX, true)] {
        let reply = SidrAnswer { private_data: &BYTES[..len], ..reply(SidrStatus::SUCCESS) };
        assert_eq!(net.cm[B].sidr_reply(b, &reply).is_ok(), fits, "{len}");
    }
}
