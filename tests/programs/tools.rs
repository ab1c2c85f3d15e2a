//! The tools that people type first: `rdma` of iproute2, `ibstat` and `ibstatus` of infiniband-diags, and the
//! files that scripts of NIC vendors read. The lines are those that the tools print for a RoCE NIC.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, end_running, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, eventually};
use serde_json::Value;

use crate::case::{Case, LONG, SHORT, good, roxie, says};

/// What `show_gids` of NIC vendors and others do with the files.
const GIDS: &str = "cd /sys/class/infiniband/roxie0/ports/1 && ls gids | wc -l && cat gids/0 gids/253 \
                    gid_attrs/types/0 gid_attrs/ndevs/0";

pub(crate) fn cases() -> Vec<Case> {
    let places = [
        Place::new(Topology::TwoHosts, Family::V4, User::Root),
        Place::new(Topology::TwoHosts, Family::V6, User::Ordinary),
        Place::new(Topology::Loopback, Family::V4, User::Ordinary),
    ];
    let at = |place| {
        [
            Case::new(place, "rdma link", "rdma", move |lab, name| links(lab, &place, name)),
            Case::new(place, "rdma refuses changes", "rdma", move |lab, name| refusals(lab, &place, name)),
            Case::new(place, "ibstat", "ibstat", move |lab, name| ibstat(lab, &place, name)),
            Case::new(place, "gids", "cat", move |lab, name| files(lab, &place, name)),
        ]
    };
    places.into_iter().flat_map(at).collect()
}

/// The objects of programs that run meanwhile.
pub(crate) fn object_cases() -> Vec<Case> {
    let at = |user| {
        let place = Place::new(Topology::TwoHosts, Family::V4, user);
        let run = move |lab: &Lab, name: &str| objects(lab, &place, name);
        let listen = move |lab: &Lab, name: &str| listener(lab, &place, name);
        [
            Case::new(place, "rdma resource", "ib_write_bw", run).with_programs(&["rdma"]),
            Case::new(place, "rdma resource show cm_id", "rping", listen).with_programs(&["rdma"]),
            Case::new(place, "rdma resource show srq", "ibv_xsrq_pingpong", move |lab, name| {
                shared_queues(lab, &place, name)
            })
            .with_programs(&["rdma", "ibv_srq_pingpong"]),
        ]
    };
    [User::Root, User::Ordinary].into_iter().flat_map(at).collect()
}

/// Runs a tool as a user does: `roxie run -- TOOL`.
fn tool(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<Ended, String> {
    let words = [&["run", "--netdev", lab.netdev(place), "--"], words].concat();
    roxie(lab, place, Side::Client, name, &words)
}

/// The values that `rdma -j` prints.
fn json(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<Vec<Value>, String> {
    let ended = good(tool(lab, place, name, &[&["rdma", "-j"], words].concat())?)?;
    serde_json::from_str(&ended.output).map_err(|error| format!("{error}\n{}", ended.describe()))
}

/// Checks that the output is exactly this.
fn is(ended: &Ended, wanted: &str) -> Result<(), String> {
    match ended.output == wanted {
        true => Ok(()),
        false => Err(format!("not {wanted:?}\n{}", ended.describe())),
    }
}

fn links(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let netdev = lab.netdev(place);
    let line = format!("link roxie0/1 state ACTIVE physical_state LINK_UP netdev {netdev} \n");
    is(&good(tool(lab, place, name, &["rdma", "link"])?)?, &line)?;
    is(&good(tool(lab, place, name, &["sh", "-c", "rdma link show roxie0/1; true"])?)?, &line)?;
    is(&good(tool(lab, place, name, &["env", "rdma", "link", "show", "roxie0/1"])?)?, &line)?;
    let rows = json(lab, place, name, &["-d", "link"])?;
    let row = rows.first().ok_or("no link")?;
    if row["netdev"] != netdev || row["port"] != 1 || row["netdev_index"].as_u64().is_none() {
        return Err(row.to_string());
    }
    let device = good(tool(lab, place, name, &["rdma", "dev"])?)?;
    says(&device, "0: roxie0: node_type ca ")?;
    let rows = json(lab, place, name, &["-d", "dev", "show", "roxie0"])?;
    let row = rows.first().ok_or("no device")?;
    let info = good(tool(lab, place, name, &["ibv_devinfo", "-d", "roxie0"])?)?;
    says(&info, &format!("node_guid:\t\t\t{}", row["node_guid"].as_str().unwrap_or_default()))?;
    if row["fw"] != env!("CARGO_PKG_VERSION") || row["adaptive-moderation"] != false {
        return Err(row.to_string());
    }
    says(&good(tool(lab, place, name, &["rdma", "system"])?)?, "netns exclusive ")?;
    let named = ["run", "--name", "mlx5_0", "--netdev", netdev, "--", "rdma", "link", "show", "mlx5_0/1"];
    says(&good(roxie(lab, place, Side::Client, name, &named)?)?, "link mlx5_0/1 state ACTIVE ")
}

/// Nothing that changes devices is done, and nothing waits for ever.
fn refusals(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let netdev = lab.netdev(place);
    for (words, said) in [
        (
            &["link", "add", "r", "type", "rxe", "netdev", netdev][..],
            "roxie makes a device when a command starts",
        ),
        (&["link", "delete", "roxie0"], "Operation not supported"),
        (&["dev", "set", "roxie0", "name", "other"], "'roxie run --name NAME'"),
        (&["system", "set", "netns", "shared"], "Operation not supported"),
        (&["link", "show", "roxie0/2"], "Wrong device name"),
        (&["link", "show", "other/1"], "Wrong device name"),
        (&["monitor"], "monitor"),
    ] {
        let ended = tool(lab, place, name, &[&["rdma"], words].concat())?;
        says(&ended, said)?;
        if ended.status.is_none_or(|status| status.success()) && words != ["monitor"] {
            return Err(ended.describe());
        }
    }
    let none = ["run", "--netdev", "no-such-netdev", "--", "rdma", "link"];
    says(&roxie(lab, place, Side::Client, name, &none)?, "no-such-netdev")
}

fn ibstat(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(tool(lab, place, name, &["ibstat"])?)?;
    for fact in
        ["CA 'roxie0'\n", "\tNumber of ports: 1\n", "\t\tState: Active\n", "\t\tLink layer: Ethernet\n"]
    {
        says(&ended, fact)?;
    }
    is(&good(tool(lab, place, name, &["sh", "-c", "ibstat -l"])?)?, "roxie0\n")?;
    let ended = good(tool(lab, place, name, &["ibstatus"])?)?;
    says(&ended, "Infiniband device 'roxie0' port 1 status:\n")?;
    says(&ended, "\tstate:\t\t 4: ACTIVE\n")
}

fn files(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let words = ["run", "--netdev", lab.netdev(place), "--device-files", "--", "sh", "-c", GIDS];
    let ended = good(roxie(lab, place, Side::Client, name, &words)?)?;
    says(&ended, "254\n")?;
    says(&ended, "\n0000:0000:0000:0000:0000:0000:0000:0000\n")?;
    says(&ended, &format!("\nRoCE v2\n{}\n", lab.netdev(place)))
}

/// The objects of two programs, each seen on its own host.
fn objects(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const QUEUE_PAIRS: usize = 60;
    let (port, address, count) = (lab.port(), lab.address(place), QUEUE_PAIRS.to_string());
    let port_word = port.to_string();
    let common = ["ib_write_bw", "-F", "-d", "roxie0", "-p", &port_word, "-D", "600", "-q", &count];
    let mut server = start(lab, place, Side::Server, name, &common)?;
    wait_ready(&mut server, Ready::Tcp(port))?;
    let mut client = start(lab, place, Side::Client, name, &[&common[..], &[address]].concat())?;
    let name = &format!("{name} shown");
    let mut rows = Vec::new();
    let are_connected = |rows: &Vec<Value>| {
        rows.len() == QUEUE_PAIRS && rows.iter().all(|row| row["state"] == "RTS" && row["type"] == "RC")
    };
    let seen = eventually(SHORT, || {
        rows = json(lab, place, name, &["resource", "show", "qp"]).unwrap_or_default();
        are_connected(&rows)
    });
    let first = rows.first().cloned().unwrap_or_default();
    if !seen || first["comm"] != "ib_write_bw" || first["port"] != 1 || first["rqpn"].as_u64().is_none() {
        return Err(format!("{} queue pairs, {first}\n{}", rows.len(), client.wait(LONG).describe()));
    }
    let (lqpn, pid) = (first["lqpn"].to_string(), first["pid"].to_string());
    let one = json(lab, place, name, &["resource", "show", "qp", "link", "roxie0/1", "lqpn", &lqpn])?;
    let of_process = json(lab, place, name, &["resource", "show", "qp", "pid", &pid])?;
    if one.len() != 1 || of_process.len() != QUEUE_PAIRS {
        return Err(format!("{one:?}, {} queue pairs of the process", of_process.len()));
    }
    says(&good(tool(lab, place, name, &["rdma", "resource"])?)?, &format!(" qp {QUEUE_PAIRS} cm_id 0 mr "))?;
    let regions = json(lab, place, name, &["resource", "show", "mr", "pid", &pid])?;
    let of_domain = |row: &Value| row["mrlen"].as_u64() > Some(0) && row["pdn"].as_u64().is_some();
    // As with the kernel, keys are for root.
    let has_key = |row: &Value| row["rkey"].is_null() == (place.user == User::Ordinary);
    if regions.is_empty() || !regions.iter().all(|row| of_domain(row) && has_key(row)) {
        return Err(format!("{regions:?}"));
    }
    let users = |kind| -> Result<u64, String> {
        let rows = json(lab, place, name, &["resource", "show", kind])?;
        Ok(rows.iter().filter_map(|row| row["users"].as_u64()).sum())
    };
    let (queues, domains) = (users("cq")?, users("pd")?);
    if queues < 2 * QUEUE_PAIRS as u64 || domains != (QUEUE_PAIRS + regions.len()) as u64 {
        return Err(format!("users of completion queues: {queues}, of protection domains: {domains}"));
    }
    let mut counters = Vec::new();
    let counts = |rows: &[Value]| rows.first()?["sent_pkts"].as_u64();
    let counted = eventually(SHORT, || {
        counters = json(lab, place, name, &["statistic", "show", "link", "roxie0/1"]).unwrap_or_default();
        counts(&counters).is_some_and(|count| count > 0)
    });
    if !counted {
        return Err(format!("{counters:?}"));
    }
    end_running([server, client])
}

/// A server that no client has connected to.
fn listener(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port();
    let words = ["rping", "-s", "-a", "0.0.0.0", "-p", &port.to_string()];
    let server = start(lab, place, Side::Client, name, &words)?;
    let name = &format!("{name} shown");
    let mut rows = Vec::new();
    let seen = eventually(SHORT, || {
        rows = json(lab, place, name, &["resource", "show", "cm_id"]).unwrap_or_default();
        !rows.is_empty()
    });
    let [row] = &rows[..] else { return Err(format!("{rows:?}\n{}", server.output())) };
    let facts = [("state", "LISTEN"), ("ps", "TCP"), ("comm", "rping")];
    let is_wanted = facts.iter().all(|(field, wanted)| row[*field] == *wanted);
    match seen && is_wanted && row["src-addr"] == format!("0.0.0.0:{port}") {
        true => Ok(()),
        false => Err(row.to_string()),
    }
}

/// Servers with a shared receive queue that no client has connected to.
fn shared_queues(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const QUEUE_PAIRS: usize = 16;
    for (program, ty, queue_pairs) in
        [("ibv_srq_pingpong", "BASIC", QUEUE_PAIRS), ("ibv_xsrq_pingpong", "XRC", 0)]
    {
        let port = lab.port();
        let words = [program, "-d", "roxie0", "-g", "0", "-p", &port.to_string()];
        let mut server = start(lab, place, Side::Client, name, &words)?;
        wait_ready(&mut server, Ready::Tcp(port))?;
        let name = &format!("{name} shown");
        let queues = json(lab, place, name, &["-d", "resource", "show", "srq"])?;
        let [queue] = &queues[..] else { return Err(format!("{queues:?}\n{}", server.output())) };
        let listed = queue["lqpn"].as_array().map_or(0, Vec::len);
        // The kernel keeps 15 characters.
        let is_its = queue["comm"].as_str().is_some_and(|comm| program.starts_with(comm));
        if queue["type"] != ty || !is_its || listed != queue_pairs {
            return Err(queue.to_string());
        }
        let contexts = json(lab, place, name, &["resource", "show", "ctx"])?;
        let context = &contexts.first().ok_or("no context")?["ctxn"];
        for (kind, number) in [("pd", "pdn"), ("cq", "cqn")] {
            let rows = json(lab, place, name, &["resource", "show", kind])?;
            let row = rows.iter().find(|row| row[number] == queue[number]);
            let is_ours = row.is_some_and(|row| row["ctxn"] == *context && row["pid"] == queue["pid"]);
            // Only XRC queues have a completion queue of their own.
            if !(is_ours || kind == "cq" && ty == "BASIC") {
                return Err(format!("{kind}: {rows:?} of {queue}, context {context}"));
            }
        }
        let summary = good(tool(lab, place, name, &["rdma", "resource"])?)?;
        says(&summary, " ctx 1 srq 1 ")?;
    }
    Ok(())
}
