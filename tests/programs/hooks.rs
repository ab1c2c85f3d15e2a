//! Hooks of unmodified programs: random loss, and a hook that is attached while the program runs.

use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Port, Topology, User};
use roxie_tests::process::{Ended, eventually};
use serde_json::Value;

use crate::case::{Case, LONG, SHORT, Scale, Spread, good, places, roxie, says};

/// Time limit for the first packets of a measuring program.
const TRAFFIC_MAX: Duration = Duration::from_secs(5);
/// Packets that show that a hook sees the stream; acknowledgements are few.
const PACKETS: u64 = 100;

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    // With AF_XDP a hook sees the frames of the wire; with UDP sockets the port makes the headers.
    let native = [(Family::V4, 1500), (Family::V6, 9000)]
        .map(|(family, mtu)| Place::xsk(family, mtu, Port::Native, Port::Native));
    let mut all = places(scale, Spread::Two);
    let more: Vec<Place> = native.into_iter().filter(|place| !all.contains(place)).collect();
    all.extend(more);
    for place in all {
        cases.push(Case::new(place, "rping with 1 % loss in each direction", "rping", move |lab, name| {
            lossy(lab, &place, name)
        }));
    }
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Ordinary);
    for place in [place, native[0]] {
        cases.push(Case::new(
            place,
            "hooks attached to a running ib_write_bw",
            "ib_write_bw",
            move |lab, name| running(lab, &place, name),
        ));
    }
    cases.push(Case::new(place, "a hook that does not exist", "rping", move |lab, name| {
        // The device itself loads no object files.
        let roxie = lab.roxie().display().to_string();
        let by_run = [&roxie, "run", "--ingress", "/no/such/file.o", "--", "rping", "-s", "-C", "1"];
        let by_device = ["env", "ROXIE_INGRESS=/no/such/file.o", "rping", "-s", "-C", "1"];
        for (words, why) in [
            (&by_run[..], "/no/such/file.o: No such file or directory"),
            (&by_device, "/no/such/file.o is no built-in stage"),
        ] {
            let ended = start(lab, &place, Side::Server, name, words)?.wait(SHORT);
            if ended.succeeded() {
                return Err(format!("it started\n{}", ended.describe()));
            }
            says(&ended, why)?;
        }
        Ok(())
    }));
    cases
}

/// Drops every 100th received and every 100th sent packet, on both sides.
fn lossy(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port().to_string(), lab.address(place));
    let hooks =
        ["env", "ROXIE_STATS=1", "ROXIE_INGRESS=impair:loss=1%,seed=1", "ROXIE_EGRESS=impair:loss=1%,seed=2"];
    let common = ["-a", address, "-p", &port, "-C", "300", "-V"];
    let both = Pair {
        name,
        server: [&hooks[..], &["rping", "-s"], &common].concat(),
        client: [&hooks[..], &["rping", "-c"], &common].concat(),
        ready: Ready::Cm(port.parse().map_err(|_| "a port")?),
        limit: LONG,
    }
    .run(lab, place)?;
    says(&both.client, "roxie: rx_xdp_drop ")?;
    says(&both.client, "roxie: tx_xdp_drop ")
}

/// Attaches a counter, tries a second hook, and finally drops every packet.
fn running(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["ib_write_bw", "-F", "-d", "roxie0", "-p", &port_word, "-D", "30"];
    let mut server = start(lab, place, Side::Server, name, &common)?;
    wait_ready(&mut server, Ready::Tcp(port))?;
    let mut client = start(lab, place, Side::Client, name, &[&common[..], &[address]].concat())?;
    let outputs = format!("{name} hook");
    let hook = |words: &[&str]| roxie(lab, place, Side::Client, &outputs, &[&["hook"], words].concat());

    let mut found = None;
    eventually(TRAFFIC_MAX, || {
        found = hook(&["list", "--json"]).and_then(good).ok().and_then(|ended| only_process(&ended));
        found.is_some()
    });
    let pid = found
        .ok_or_else(|| format!("no process to be hooked\n{}", client.wait(Duration::ZERO).describe()))?;
    for point in ["ingress", "egress"] {
        good(hook(&["attach", &pid, point, "count"])?)?;
        let refused = hook(&["attach", &pid, point, "impair:loss=1%"])?;
        if refused.succeeded() {
            return Err(format!("a second hook was attached\n{}", refused.describe()));
        }
        says(&refused, &format!("{point} has a program already: count"))?;
    }
    let mut last = None;
    let counted = eventually(TRAFFIC_MAX, || {
        let stats = hook(&["stats", &pid, "--json"]).and_then(good);
        let seen = stats.as_ref().is_ok_and(|ended| packets(ended).is_some_and(|packets| packets > PACKETS));
        last = Some(stats);
        seen
    });
    if !counted {
        return Err(format!("the hooks count nothing: {last:?}"));
    }
    good(hook(&["detach", &pid, "ingress"])?)?;
    data(&pid, &hook)?;
    good(hook(&["attach", &pid, "egress", "impair:loss=100%", "--replace"])?)?;
    let ended = client.wait(LONG);
    server.wait(Duration::ZERO);
    if ended.succeeded() {
        return Err(format!("it ended well without a single packet\n{}", ended.describe()));
    }
    // IBV_WC_RETRY_EXC_ERR
    says(&ended, "(IBV_WC_RETRY_EXC_ERR): ")?;
    says(&ended, "Failed status 12")
}

/// Reads samples and maps of a hook while the program runs, without privileges where the place has none.
fn data(pid: &str, hook: &dyn Fn(&[&str]) -> Result<Ended, String>) -> Result<(), String> {
    let samples = good(hook(&["samples", pid, "--at", "ingress", "--attach", "sample", "--count", "3"])?)?;
    says(&samples, "ingress")?;
    says(&samples, " RC ")?;
    // The hook is detached with the command that attached it.
    let detached = eventually(TRAFFIC_MAX, || {
        hook(&["map", "list", pid]).is_ok_and(|ended| says(&ended, "no program with maps").is_ok())
    });
    if !detached {
        return Err("the hook of 'samples --attach' stays".to_owned());
    }
    good(hook(&["attach", pid, "ingress", "sample:every=10"])?)?;
    says(&good(hook(&["map", "list", pid])?)?, "sample_state")?;
    let seen = || {
        let ended = hook(&["map", "get", pid, "sample_state", "--json"]).and_then(good).ok()?;
        let found: Value = serde_json::from_str(&ended.output).ok()?;
        let value = found[0]["entries"][0]["values"][0].as_str()?;
        value.split('+').next()?.parse::<u64>().ok()
    };
    if !eventually(TRAFFIC_MAX, || seen().is_some_and(|seen| seen > PACKETS)) {
        return Err(format!("the program counts {:?} packets in its map", seen()));
    }
    // From far above, the program counts on.
    let far = 1_u64 << 40;
    good(hook(&["map", "set", pid, "sample_state", "0", &format!("{far}+0")])?)?;
    if seen().is_none_or(|seen| seen < far) {
        return Err(format!("the value that was set is not there: {:?}", seen()));
    }
    good(hook(&["detach", pid, "ingress"])?).map(drop)
}

/// The process that `roxie hook list --json` shows.
pub(crate) fn only_process(ended: &Ended) -> Option<String> {
    let rows: Value = serde_json::from_str(&ended.output).ok()?;
    match rows.as_array()?.as_slice() {
        [row] => Some(row["pid"].as_u64()?.to_string()),
        _ => None,
    }
}

/// Fewest packets that a hook has seen.
fn packets(ended: &Ended) -> Option<u64> {
    let rows: Value = serde_json::from_str(&ended.output).ok()?;
    let hooks = rows.get(0)?["hooks"].as_array()?;
    hooks.iter().map(|hook| hook["counters"]["packets"].as_u64()).min().flatten()
}
