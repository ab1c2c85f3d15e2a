//! Datagrams to multicast groups, between hosts and between processes of one host: mckey, and a program with
//! groups of every scope.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, SHORT, Scale, Spread, build, gid_index, places, says};

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    // mckey sleeps for seconds, so at quick scale it runs only at places that differ.
    let mut wanted = places(scale, Spread::Two);
    if scale == Scale::Quick {
        wanted.push(Place::new(Topology::TwoHosts, Family::V6, User::Root));
        wanted.push(Place::new(Topology::SameHost, Family::V6, User::Ordinary));
    }
    // The kernel sends no packet from ::1 to a group.
    wanted.retain(|place| (place.topology, place.family) != (Topology::Loopback, Family::V6));
    let mut cases: Vec<_> = wanted.into_iter().map(|place| case(place, "mckey", &[])).collect();
    let mut senders = places(scale, Spread::Ordinary);
    senders.retain(|place| place.family == Family::V4);
    cases.extend(senders.into_iter().map(|place| case(place, "mckey -o", &["-o"])));
    let hosts = Place::new(Topology::TwoHosts, Family::V6, User::Root);
    cases.push(Case::new(hosts, "groups of every scope", "cc", move |lab, name| scopes(lab, &hosts, name)));
    cases
}

/// Messages to groups of every scope leave the host, but for the reserved scope and that of the interface
/// itself: the kernel sends none of these, also for rxe (ip6_finish_output2).
fn scopes(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, "groups.c", &["-libverbs"])?;
    let index = gid_index(lab, place, Side::Client)?;
    let last: IpAddr = Ipv6Addr::new(0xff1f, 0, 0, 0, 0, 0, 0x77, 0x10).into();
    let pair = Pair {
        name,
        server: vec![program.path(), "receive"],
        client: vec![program.path(), "send", &index],
        ready: Ready::Group(last),
        limit: SHORT,
    };
    let both = pair.run(lab, place)?;
    let groups = ["ff0", "ff1"].into_iter().flat_map(|flags| (2..16).map(move |scope| (flags, scope)));
    let line = |(flags, scope)| format!("{flags}{scope:x}::77:{:x}\n", scope + 1);
    says(&both.server, &groups.map(line).collect::<String>())
}

fn case(place: Place, what: &str, sender: &'static [&'static str]) -> Case {
    Case::new(place, what, "mckey", move |lab, name| run(lab, &place, name, sender))
}

/// The receiver gets what the sender sends to the group; the sender is a member, or only sends.
fn run(lab: &Lab, place: &Place, name: &str, sender: &[&str]) -> Result<(), String> {
    // Each case has another group; with a shared one the next receiver would look ready too early.
    let number = lab.port();
    let [high, low] = number.to_be_bytes();
    let group: IpAddr = match place.family {
        Family::V4 => Ipv4Addr::new(239, 77, high, low).into(),
        Family::V6 => Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0x77, number).into(),
    };
    let group_word = group.to_string();
    let receiver_address = lab.address(place);
    let sender_address = lab.own_address(place, Side::Client);
    let common = ["mckey", "-m", &group_word, "-C", "50", "-S", "1000"];
    let pair = Pair {
        name,
        server: [&common[..], &["-b", receiver_address]].concat(),
        client: [&common[..], &["-s", "-b", sender_address], sender].concat(),
        ready: Ready::Group(group),
        limit: SHORT,
    };
    let both = pair.run(lab, place)?;
    says(&both.client, "return status 0")?;
    says(&both.server, "data transfers complete")
}
