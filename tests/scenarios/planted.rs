//! Runs with a planted fault.
//!
//! Hooks are behind the interface: a recording at the server has the packets that the server's ingress hook
//! drops, but no recording has those that the client's egress hook drops.

use std::time::Duration;

use roxie_tests::lab::Side::{Client, Server};

use crate::scenario::{Programs, Scenario, Shows};
use crate::wire_faults;
use Programs::{Actor, Cm, Tcp};
use Shows::{Also, First, Packet};

/// Time until a request of the connection manager was transmitted twice (4.6 s).
const CM_TWICE: Duration = Duration::from_secs(6);
/// Until the second repetition of a REQ has a reply.
const CM_THRICE: Duration = Duration::from_secs(11);

pub(crate) fn scenarios() -> Vec<Scenario> {
    [lost_requests(), lost_answers(), lost_handshakes(), refusals(), disagreements(), bad_paths(), silences()]
        .into_iter()
        .flatten()
        .collect()
}

const SENDS: Programs = Actor("rc", "rc send=100 send=200 send=300");
const LONG_SEND: Programs = Actor("rc", "rc send=5000 send=100");
const LONG_WRITE: Programs = Actor("rc", "rc write=5000 write=100");
const LONG_READ: Programs = Actor("rc", "rc read=5000 read=100");

fn lost_requests() -> Vec<Scenario> {
    let behind = |name: &str, programs, hook, opcode, nth| {
        let shows = Packet("lost-request", "", (opcode, nth));
        Scenario::new(&format!("{name}, lost behind the recording"), programs, shows).env(Server, &[hook])
    };
    let before = |name: &str, programs, hook| {
        let shows = First("lost-request", "did not reach the capture point");
        Scenario::new(&format!("{name}, lost before the recording"), programs, shows).env(Client, &[hook])
    };
    vec![
        behind("a SEND", SENDS, "ROXIE_INGRESS=impair:loss=100%,opcode=send-only,nth=2", "send only", 2)
            .always_live(),
        behind(
            "the first packet of a SEND",
            LONG_SEND,
            "ROXIE_INGRESS=impair:loss=100%,opcode=send-first",
            "send first",
            1,
        ),
        behind(
            "a middle packet of a SEND",
            LONG_SEND,
            "ROXIE_INGRESS=impair:loss=100%,opcode=send-middle,nth=2",
            "send middle",
            2,
        ),
        behind(
            "the last packet of a SEND",
            LONG_SEND,
            "ROXIE_INGRESS=impair:loss=100%,opcode=send-last,nth=1",
            "send last",
            1,
        ),
        behind(
            "the third packet of a WRITE",
            LONG_WRITE,
            "ROXIE_INGRESS=impair:loss=100%,opcode=write-only,nth=3",
            "write only",
            3,
        ),
        behind(
            "the last packet of a WRITE",
            LONG_WRITE,
            "ROXIE_INGRESS=impair:loss=100%,opcode=write-only,nth=5",
            "write only",
            5,
        ),
        behind(
            "a READ request",
            LONG_READ,
            "ROXIE_INGRESS=impair:loss=100%,opcode=read-request,nth=1",
            "read request",
            1,
        ),
        behind(
            "an atomic",
            Actor("rc", "rc add add add"),
            "ROXIE_INGRESS=impair:loss=100%,opcode=fetch,nth=2",
            "fetch",
            2,
        ),
        before(
            "a middle packet of a SEND",
            LONG_SEND,
            "ROXIE_EGRESS=impair:loss=100%,opcode=send-middle,nth=2",
        ),
        before(
            "the third packet of a WRITE",
            LONG_WRITE,
            "ROXIE_EGRESS=impair:loss=100%,opcode=write-only,nth=3",
        ),
        Scenario::new(
            "a packet of a UC message",
            Actor("uc", "uc send=5000 send=5000 send=100"),
            First("lost-unreliable", "does not repeat"),
        )
        .env(Client, &["ROXIE_EGRESS=impair:loss=100%,opcode=send-middle,nth=2"]),
    ]
}

fn lost_answers() -> Vec<Scenario> {
    let behind = |name: &str, programs, hook, kind, opcode, nth| {
        Scenario::new(
            &format!("{name}, lost behind the recording"),
            programs,
            Packet(kind, "", (opcode, nth)),
        )
        .env(Client, &[hook])
        .at_client()
    };
    vec![
        behind(
            "an acknowledgement",
            SENDS,
            "ROXIE_INGRESS=impair:loss=100%,opcode=rc-ack,nth=2",
            "lost-ack",
            "rc ack",
            2,
        ),
        behind(
            "a READ response",
            LONG_READ,
            "ROXIE_INGRESS=impair:loss=100%,opcode=read-response-middle,nth=2",
            "lost-response",
            "read response middle",
            2,
        ),
        behind(
            "an atomic's result",
            Actor("rc", "rc add add add"),
            "ROXIE_INGRESS=impair:loss=100%,opcode=atomic-ack,nth=2",
            "lost-response",
            "atomic ack",
            2,
        ),
        Scenario::new(
            "a READ response, lost before the recording",
            LONG_READ,
            First("lost-response", "was not seen in this capture"),
        )
        .env(Server, &["ROXIE_EGRESS=impair:loss=100%,opcode=read-response-middle,nth=2"])
        .at_client(),
    ]
}

fn lost_handshakes() -> Vec<Scenario> {
    // All of them are datagrams to QP 1: REQ, RTU and DREP from the client, REP and DREQ from the server,
    // which disconnects.
    const UCMATOSE: Programs = Cm("ucmatose -b {address} -p {port}", "ucmatose -s {address} -p {port}");
    let from_client = |name: &str, hook, words| {
        let scenario = Scenario::new(name, UCMATOSE, First("lost-cm", words)).env(Server, &[hook]);
        scenario.lingers(CM_TWICE)
    };
    let from_server = |name: &str, hook, words| {
        let scenario = Scenario::new(name, UCMATOSE, First("lost-cm", words)).env(Client, &[hook]);
        scenario.lingers(CM_TWICE).at_client()
    };
    vec![
        from_client(
            "a ConnectRequest",
            "ROXIE_INGRESS=impair:loss=100%,opcode=ud,nth=1",
            "The ConnectRequest in packet 1",
        ),
        from_server(
            "a ConnectReply",
            "ROXIE_INGRESS=impair:loss=100%,opcode=ud,nth=1",
            "The ConnectReply in packet 2",
        ),
        from_client(
            "a ReadyToUse",
            "ROXIE_INGRESS=impair:loss=100%,opcode=ud,nth=2",
            "The ReadyToUse in packet 3",
        ),
        from_server(
            "a DisconnectRequest",
            "ROXIE_INGRESS=impair:loss=100%,opcode=ud,nth=2",
            "The DisconnectRequest in packet",
        ),
        from_client(
            "a DisconnectReply",
            "ROXIE_INGRESS=impair:loss=100%,opcode=ud,nth=3",
            "The DisconnectReply in packet",
        )
        // A probe would end the connection before the request is repeated.
        .env(Server, &["ROXIE_KEEPALIVE=off"]),
    ]
}

fn refusals() -> Vec<Scenario> {
    [refused_work_requests(), refused_connections()].into_iter().flatten().collect()
}

fn refused_work_requests() -> Vec<Scenario> {
    let actor = |name: &str, server, client, kind, words| {
        Scenario::new(name, Actor(server, client), First(kind, words))
    };
    vec![
        actor("a wrong R_Key", "rc", "rc write=8 wrong-key write=8", "access-refused", "never worked")
            .always_live(),
        actor(
            "a WRITE beyond its region",
            "rc",
            "rc write=64 write=4096@63488",
            "access-refused",
            "beyond its memory region",
        ),
        actor(
            "a READ beyond its region",
            "rc",
            "rc read=64 read=64@65536",
            "access-refused",
            "beyond its memory region",
        ),
        actor(
            "a deregistered region",
            "rc forget=100",
            "rc write=64 pause=300 write=64",
            "access-refused",
            "deregistered or invalidated meanwhile",
        ),
        actor(
            "a region without rights",
            "rc rights=none",
            "rc read=8",
            "access-refused",
            "lacks REMOTE_READ",
        ),
        actor(
            "a SEND too long",
            "rc receive=512",
            "rc send=100 send=1000",
            "request-refused",
            "receive posted for it is too small",
        ),
        actor(
            "receives posted late",
            "rc late=80",
            "rc send=100 send=100",
            "receiver-not-ready",
            "too late or too few",
        ),
        actor(
            "a slow receiver",
            "rc pace=30",
            "rc send=100 send=100 send=100 send=100",
            "receiver-not-ready",
            "too late or too few",
        ),
        actor(
            "receives never posted",
            "rc deaf rnr-timer=10",
            "rc rnr-retry=3 send=100",
            "receiver-never-ready",
            "no receive posted",
        ),
    ]
}

fn refused_connections() -> Vec<Scenario> {
    vec![
        Scenario::new(
            "no listener",
            Cm("rping -s -a {address} -p {port}", "rping -c -a {address} -p 9 -C 1"),
            First("rejected", "no program listens on that port"),
        ),
        Scenario::new(
            "the listener rejects",
            Cm("{actor} --actor refuse {address}:{port}", "rping -c -a {address} -p {port} -C 1"),
            First("rejected", "the listening program rejected it"),
        ),
        Scenario::new(
            "no service of that name",
            // No listener has udaddy's port.
            Cm("rping -s -a {address} -p {port}", "udaddy -s {address} -b {own}"),
            First("rejected", "no program listens there"),
        ),
        Scenario::new(
            "a stale connection",
            Cm("ucmatose -b {address} -p {port} -c 2", "ucmatose -s {address} -p {port} -c 2"),
            // The programs end at any time after that, also in the midst of another message.
            Also("rejected", "an earlier connection"),
        )
        .hooked(Client, wire_faults::same_qpn)
        .limit(CM_THRICE),
    ]
}

fn disagreements() -> Vec<Scenario> {
    vec![
        Scenario::new(
            "two path MTUs",
            Tcp(
                "ibv_rc_pingpong -p {port} -g 0 -m 256 -n 5",
                "ibv_rc_pingpong -p {port} -g 0 -m 1024 -n 5 {address}",
            ),
            First("request-refused", "path MTU"),
        ),
        Scenario::new(
            "two Q_Keys",
            Actor("ud", "ud send=100 wrong-q-key send=100 pause=50"),
            First("wrong-key", "different Q_Keys"),
        ),
        Scenario::new(
            "two P_Keys",
            Cm("rping -s -a {address} -p {port} -C 1", "rping -c -a {address} -p {port} -C 1"),
            First("wrong-key", "P_Key"),
        )
        .hooked(Client, wire_faults::other_p_key)
        .limit(Duration::from_secs(3)),
    ]
}

fn bad_paths() -> Vec<Scenario> {
    vec![
        Scenario::new("a damaged packet", SENDS, Packet("bad-icrc", "", ("send only", 2)))
            .on_the_wire(wire_faults::damage)
            .always_live(),
        Scenario::new(
            "a packet truncated in flight",
            SENDS,
            Packet("malformed", "cut in transit", ("send only", 2)),
        )
        .on_the_wire(wire_faults::cut),
        Scenario::new(
            "packets overtake each other",
            Actor("rc", "rc write=10000 write=100"),
            First("reordered", "out of order"),
        )
        .env(Client, &["ROXIE_EGRESS=impair:delay=200us,opcode=write-only,nth=3"]),
        Scenario::new(
            "duplicated packets",
            SENDS,
            Packet("duplicated", "is the same as packet", ("send only", 3)),
        )
        .env(Client, &["ROXIE_EGRESS=impair:duplicate=100%,opcode=send-only,nth=2"]),
        Scenario::new(
            "a full queue in the network",
            Tcp(
                "ib_write_bw -F -d roxie0 -p {port} -s 4096 -n 20",
                "ib_write_bw -F -d roxie0 -p {port} -s 4096 -n 20 {address}",
            ),
            // Delayed long enough, requests are retransmitted before their responses can arrive.
            Also("congestion", "congestion notifications"),
        )
        .env(Server, &["ROXIE_INGRESS=impair:ecn=100%"])
        .env(Client, &["ROXIE_ECN=on"]),
    ]
}

fn silences() -> Vec<Scenario> {
    const PATIENCE: Programs = Actor("rc", "rc timeout=10 retry=3 send=100 send=200 send=300 send=400");
    vec![
        Scenario::new("a peer that vanishes", PATIENCE, First("no-answer", " after packet "))
            .env(Server, &["ROXIE_INGRESS=impair:loss=100%,opcode=rc,nth=3.."]),
        Scenario::new("a peer that never was there", PATIENCE, First("no-answer", "No answer of "))
            .env(Server, &["ROXIE_INGRESS=impair:loss=100%,opcode=rc"]),
        Scenario::new("one direction is dead", PATIENCE, First("lost-ack", "did not reach"))
            .env(Client, &["ROXIE_INGRESS=impair:loss=100%,opcode=rc,nth=2.."])
            .at_client(),
        Scenario::new(
            "an incomplete recording",
            Tcp(
                "ib_write_bw -F -d roxie0 -p {port} -s 65536 -n 1000",
                "ib_write_bw -F -d roxie0 -p {port} -s 65536 -n 1000 {address}",
            ),
            First("capture-loss", "were not captured in time"),
        )
        .starved()
        .always_live(),
        Scenario::new(
            "no reply from the connection manager",
            Programs::Client("rping -c -a {address} -p {port} -C 1"),
            First("no-cm-answer", "No answer of "),
        )
        .at_client()
        .limit(CM_TWICE),
    ]
}
