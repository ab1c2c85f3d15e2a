//! The output of `roxie top` and `roxie metrics` while unmodified programs run.

use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, end_running, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, Running, eventually};
use serde_json::Value;

use crate::case::{Case, LONG, good, roxie, says};

/// Time until all queue pairs are connected.
const CONNECTED_MAX: Duration = Duration::from_secs(20);
const QUEUE_PAIRS: usize = 200;

pub(crate) fn cases() -> Vec<Case> {
    let ordinary = Place::new(Topology::TwoHosts, Family::V4, User::Ordinary);
    let root = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    vec![
        Case::new(ordinary, "top and metrics of 200 queue pairs", "ib_write_bw", move |lab, name| {
            processes(lab, &ordinary, name)
        }),
        Case::new(root, "top of an interface", "ib_write_bw", move |lab, name| interface(lab, &root, name)),
    ]
}

/// Starts a server and a client that stream until they are killed.
fn stream(lab: &Lab, place: &Place, name: &str, more: &[&str]) -> Result<[Running; 2], String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["ib_write_bw", "-F", "-d", "roxie0", "-p", &port_word, "-D", "600"];
    let common = [&common[..], more].concat();
    let mut server = start(lab, place, Side::Server, name, &common)?;
    wait_ready(&mut server, Ready::Tcp(port))?;
    let client = start(lab, place, Side::Client, name, &[&common[..], &[address]].concat())?;
    Ok([server, client])
}

fn top(lab: &Lab, place: &Place, name: &str, interval: &str, words: &[&str]) -> Result<Value, String> {
    let words = [&["top", "--once", "--json", "--interval", interval], words].concat();
    let ended = good(roxie(lab, place, Side::Client, &format!("{name} top"), &words)?)?;
    serde_json::from_str(&ended.output).map_err(|error| format!("{error}\n{}", ended.describe()))
}

/// The rows with at least this rate.
fn busy(table: &Value) -> Vec<&Value> {
    let rows = table["queue_pairs"].as_array().into_iter().flatten();
    rows.filter(|row| row["rates"]["tx_bytes"].as_f64().is_some_and(|rate| rate > 0.0)).collect()
}

fn processes(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let count = QUEUE_PAIRS.to_string();
    let [server, mut client] = stream(lab, place, name, &["-q", &count, "-s", "4096"])?;
    let mut table = Value::Null;
    let seen = eventually(CONNECTED_MAX, || {
        table = top(lab, place, name, "0.5", &["--sort", "sent"]).unwrap_or_default();
        table["queue_pairs"].as_array().is_some_and(|rows| rows.len() == QUEUE_PAIRS)
            && !busy(&table).is_empty()
    });
    if !seen {
        return Err(format!("{} busy queue pairs\n{}", busy(&table).len(), client.wait(LONG).describe()));
    }
    let rows = busy(&table);
    let first = rows[0];
    for (field, wanted) in
        [("service", "RC"), ("state", "RTS"), ("command", "ib_write_bw"), ("remote", lab.address(place))]
            .into_iter()
            .chain([("device", "roxie0"), ("netdev", lab.netdev(place))])
    {
        if first[field] != wanted {
            return Err(format!("{field} is not {wanted}: {first}"));
        }
    }
    let sent = |row: &Value| row["counters"]["sent_pkts"].as_u64().unwrap_or(0);
    if sent(first) == 0 || first["round_trip_ns"].as_u64().is_none() {
        return Err(format!("nothing is counted: {first}"));
    }
    let pid = first["pid"].to_string();
    let one = top(lab, place, name, "0.5", &["-p", &pid, "--filter", "nothing of this kind"])?;
    if one["queue_pairs"] != Value::Array(Vec::new()) {
        return Err(format!("the filter does not exclude {one}"));
    }
    let words = ["top", "--once", "--interval", "0.1", "-p", &pid];
    let device = format!("ib_write_bw roxie0 {} ", lab.netdev(place));
    says(&good(roxie(lab, place, Side::Client, &format!("{name} top"), &words)?)?, &device)?;

    let metrics = good(roxie(lab, place, Side::Client, &format!("{name} metrics"), &["metrics", "--once"])?)?;
    let queue_pairs = sample(&metrics, "roxie_queue_pairs", &pid)?;
    if queue_pairs != QUEUE_PAIRS as f64 || sample(&metrics, "roxie_sent_bytes_total", &pid)? == 0.0 {
        return Err(format!("{queue_pairs} queue pairs\n{}", metrics.describe()));
    }
    client.signal(Signal::SIGSTOP);
    let named = [&["hook", "list"][..], &["top", "--once", "--interval", "0.1"]].map(|words| {
        let ended = good(roxie(lab, place, Side::Client, &format!("{name} stopped"), words)?)?;
        says(&ended, &pid).and_then(|()| says(&ended, "does not answer"))
    });
    client.signal(Signal::SIGCONT);
    named.into_iter().collect::<Result<(), _>>()?;
    end_running([server, client])
}

/// The value of a series of this process.
fn sample(ended: &Ended, name: &str, pid: &str) -> Result<f64, String> {
    let start = format!("{name}{{pid=\"{pid}\"");
    let line = ended.output.lines().find(|line| line.starts_with(&start));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.ok_or_else(|| format!("no {start}\n{}", ended.describe()))
}

/// One line per connection, with the traffic of both directions.
fn interface(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let [server, mut client] = stream(lab, place, name, &["-s", "65536"])?;
    let mut table = Value::Null;
    let seen = eventually(CONNECTED_MAX, || {
        // On a busy machine the reader of the capture pauses for most of a second.
        table = top(lab, place, name, "3", &["-i", lab.netdev(place)]).unwrap_or_default();
        !busy(&table).is_empty()
    });
    if !seen {
        return Err(format!("{table}\n{}", client.wait(LONG).describe()));
    }
    // Whichever direction the capture sees first, the local end is that of the interface, and it sends.
    let (own, peer) = (lab.own_address(place, Side::Client), lab.address(place));
    let is_wanted = |row: &Value| row["local"] == own && row["remote"] == peer && row["service"] == "RC";
    if !busy(&table).into_iter().any(is_wanted) {
        return Err(format!("{table}"));
    }
    end_running([server, client])
}
