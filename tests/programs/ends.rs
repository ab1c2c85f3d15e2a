//! A peer hears at once of a process that stops: at each step of a connection, in both roles, in each way.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, build, good, roxie};

/// What the server has done, and what the client gets when it stops.
const SERVER: [(&str, &str); 6] = [
    ("a request is unread", "RDMA_CM_EVENT_REJECTED"),
    ("a request is read", "RDMA_CM_EVENT_REJECTED"),
    ("rdma_accept fails", "RDMA_CM_EVENT_REJECTED"),
    // The client reads the reply after the rejection, or before it.
    ("a reply is sent", "RDMA_CM_EVENT_CONNECT_ERROR or RDMA_CM_EVENT_REJECTED"),
    ("the server is established", "RDMA_CM_EVENT_DISCONNECTED"),
    ("the client has disconnected", "RDMA_CM_EVENT_DISCONNECTED"),
];
const CLIENT: [(&str, &str); 4] = [
    ("a request is sent", "accept fails"),
    ("a reply is unread", "RDMA_CM_EVENT_REJECTED"),
    ("the client is established", "RDMA_CM_EVENT_DISCONNECTED"),
    ("the server has disconnected", "RDMA_CM_EVENT_DISCONNECTED"),
];
/// The same for a datagram service (SIDR), which has no further steps.
const DATAGRAMS: [(&str, &str); 3] = [
    ("a request is unread", "RDMA_CM_EVENT_UNREACHABLE"),
    ("a request is read", "RDMA_CM_EVENT_UNREACHABLE"),
    ("rdma_accept fails", "RDMA_CM_EVENT_UNREACHABLE"),
];
const WAYS: [&str; 3] = ["destroys its id", "exits", "closes its channel"];

pub(crate) fn cases() -> Vec<Case> {
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    vec![Case::new(place, "a peer hears of each end of a connection", "cc", move |lab, name| {
        ends(lab, &place, name)
    })]
}

fn ends(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, "ends.c", &["-libverbs", "-lrdmacm"])?;
    let own = lab.own_address(place, Side::Server);
    let words = ["run", "--quiet", "--netdev", lab.netdev(place), "--", program.path(), own];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    let mut lines = ended.output.lines();
    for (rows, role) in [(&SERVER[..], "server"), (&CLIENT[..], "client"), (&DATAGRAMS[..], "server")] {
        for ((step, event), way) in rows.iter().flat_map(|row| WAYS.map(|way| (row, way))) {
            let wanted = format!("{step}, the {role} {way}: ");
            let got = lines.next().unwrap_or_default();
            if !got.strip_prefix(&wanted).is_some_and(|got| event.split(" or ").any(|event| event == got)) {
                return Err(format!("'{got}' instead of '{wanted}{event}'\n{}", ended.describe()));
            }
        }
    }
    Ok(())
}
