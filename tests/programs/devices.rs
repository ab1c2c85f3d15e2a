//! The ibverbs-utils that only query: ibv_devices, ibv_devinfo. Hosts with two devices: programs on one of
//! them reach those on the other.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, good, roxie, says, until_listening};

/// Programs on a host with two interfaces, as which device and to which address: the command of the server,
/// and what the client has besides.
const PAIRS: [(&str, &str, &str); 7] = [
    ("ibv_rc_pingpong", "ibv_rc_pingpong -g 0 -n 200 -p PORT -d roxie0", "-d roxie1 10.9.0.1"),
    ("ibv_ud_pingpong", "ibv_ud_pingpong -g 0 -n 200 -p PORT -d roxie1", "-d roxie0 10.9.1.1"),
    ("ib_write_bw", "ib_write_bw -F -x 0 -n 300 -p PORT -d roxie0", "-d roxie1 10.9.0.1"),
    ("ib_read_bw", "ib_read_bw -F -x 0 -n 100 -p PORT -d roxie1", "-d roxie0 10.9.0.1"),
    ("rping", "rping -C 20 -p PORT -s -a 0.0.0.0", "-c -a 10.9.1.1 -I 10.9.0.1"),
    ("rping", "rping -C 20 -p PORT -s -a 10.9.0.1", "-c -a 10.9.0.1 -I 10.9.1.1"),
    ("ucmatose", "ucmatose -p PORT", "-b 10.9.1.1 -s 10.9.0.1"),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in Place::all().into_iter().filter(|place| place.family == Family::V4) {
        cases.push(look(place, &["ibv_devices"], &["roxie0"]));
        let facts = ["hca_id:\troxie0", "PORT_ACTIVE", "link_layer:\t\tEthernet"];
        cases.push(look(place, &["ibv_devinfo"], &facts));
        cases.push(look(place, &["ibv_devinfo", "-v"], &["max_qp:", "max_sge:", "GID[  0]:", "RoCE v2"]));
    }
    let place = Place::new(Topology::Loopback, Family::V4, User::Root);
    for (program, server, client) in PAIRS {
        for shm in ["on", "off"] {
            let what = format!("two devices, shared memory {shm}: {server} and {client}");
            cases.push(Case::new(place, &what, program, move |lab, name| {
                reach(lab, &place, name, shm, (server, client))
            }));
        }
    }
    cases
}

/// Runs a server and a client on one host with two interfaces, each with its own device.
fn reach(
    lab: &Lab,
    place: &Place,
    name: &str,
    shm: &str,
    (server, client): (&str, &str),
) -> Result<(), String> {
    let port = lab.port();
    let server = server.replace("PORT", &port.to_string());
    let listening = server.split(" -s").next().unwrap_or_default().split(" -d").next().unwrap_or_default();
    let client = format!("{listening} {client}");
    let script = format!(
        "ip link set lo up
for i in 0 1; do
    ip link add a$i type veth peer name b$i
    ip address add 10.9.$i.1/24 dev a$i
    ip link set a$i up
    ip link set b$i up
done
export ROXIE_NETDEV=a0,a1
{server} & {}
{client}
wait $!",
        until_listening(port)
    );
    let words = ["run", "--shm", shm, "--", "unshare", "--net", "sh", "-euc", &script];
    good(roxie(lab, place, Side::Server, name, &words)?).map(drop)
}

fn look(place: Place, program: &'static [&'static str], facts: &[&'static str]) -> Case {
    let facts = facts.to_vec();
    Case::new(place, &program.join(" "), program[0], move |lab, name| {
        let mut words = vec!["run", "--netdev", lab.netdev(&place), "--"];
        words.extend(program);
        let ended = good(roxie(lab, &place, Side::Server, name, &words)?)?;
        facts.iter().try_for_each(|fact| says(&ended, fact))
    })
}
