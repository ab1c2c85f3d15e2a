//! The `roxie` program: demo, devinfo, doctor, env, and the messages of `run` when it cannot start a
//! program.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::eventually;
use serde_json::Value;

use crate::case::{Case, LONG, SHORT, Scale, devinfo, good, roxie, says, until_listening};

/// Number of measured starts; the median counts.
const STARTS: usize = 11;
/// Limit for `roxie run -- ibv_devices`, including the namespace.
const START_MAX: Duration = Duration::from_millis(100);
/// Limit for the whole demo.
const DEMO_MAX: Duration = Duration::from_secs(20);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for user in [User::Root, User::Ordinary] {
        let place = Place::new(Topology::Loopback, Family::V4, user);
        let veth = Place::new(Topology::SameHost, Family::V4, user);
        let case = |place: Place, what, program, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
            Case::new(place, what, program, move |lab, name| run(lab, &place, name))
        };
        cases.extend([
            case(veth, "roxie demo --netdev", "taskset", demo_netdev),
            case(veth, "roxie devinfo", "taskset", devinfo_facts),
            case(place, "roxie doctor", "taskset", doctor),
            case(place, "roxie env", "sh", environment),
            case(place, "roxie run without a command to run", "taskset", refusals),
            case(place, "roxie run keeps exit codes", "sh", exit_codes),
            case(place, "roxie pair", "rping", pairs),
            case(place, "roxie on a stack of 64 KiB", "rping", small_stack),
        ]);
    }
    let place = Place::new(Topology::SameHost, Family::V4, User::Ordinary);
    cases.push(Case::new(place, "roxie interop", "rping", move |lab, name| interop(lab, &place, name)));
    cases.push(Case::new(place, "roxie interop is stopped", "ib_write_bw", move |lab, name| {
        interop_stopped(lab, &place, name)
    }));
    cases
}

/// Those that measure: most of them for ten seconds or more.
pub(crate) fn timed(scale: Scale) -> Vec<Case> {
    let [root, place] =
        [User::Root, User::Ordinary].map(|user| Place::new(Topology::Loopback, Family::V4, user));
    let case = |place: Place, what, program, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        Case::new(place, what, program, move |lab, name| run(lab, &place, name))
    };
    let mut cases = vec![
        case(root, "roxie run starts fast", "ibv_devices", starts_fast),
        case(place, "roxie run starts fast", "ibv_devices", starts_fast),
        case(place, "roxie demo --json", "taskset", demo_json),
    ];
    if scale == Scale::Full {
        cases.push(case(place, "roxie demo", "taskset", demo));
        cases.push(case(place, "roxie bench", "taskset", bench));
    }
    cases
}

/// The peer is roxie on the same host, then a host without a device.
fn interop(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let via = format!("{} run --netdev {} --", lab.roxie().display(), lab.netdev(place));
    let interop = |via| {
        roxie(
            lab,
            place,
            Side::Client,
            name,
            &["interop", lab.address(place), "--via", via, "--only", "rping", "--json"],
        )
    };
    let ended = good(interop(&via)?)?;
    if ended.output.matches("\"verdict\":\"pass\"").count() != 2 {
        return Err(format!("not two passes\n{}", ended.describe()));
    }
    let ended = interop("env")?;
    says(&ended, "no RoCEv2 device has the address")?;
    if ended.succeeded() { Err(ended.describe()) } else { Ok(()) }
}

/// After a signal no process of it remains.
fn interop_stopped(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const PROGRAM: &str = "ib_write_bw";
    let via = format!("{} run --netdev {} --", lab.roxie().display(), lab.netdev(place));
    let words = ["interop", lab.address(place), "--via", &via, "--only", PROGRAM, "--timeout", "60"];
    let started = lab.roxie_command(place, Side::Client, name, &words);
    let mut running = started.map_err(|error| error.to_string())?;
    let pid = running.pid();
    let proc = |pid: &str, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let is_program = |pid: &str| proc(pid, "comm").trim() == PROGRAM;
    let mut children = Vec::new();
    let under_way = eventually(LONG, || {
        let listing = proc(&pid.to_string(), &format!("task/{pid}/children"));
        children = listing.split_whitespace().map(str::to_owned).filter(|pid| is_program(pid)).collect();
        !children.is_empty()
    });
    if !under_way {
        return Err(format!("no {PROGRAM} runs\n{}", running.wait(Duration::ZERO).describe()));
    }
    // The signal goes to this process only; a terminal would send it to the whole group.
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM).map_err(|error| error.to_string())?;
    let ended = running.wait(SHORT);
    let left = !eventually(SHORT, || !children.iter().any(|pid| is_program(pid)));
    if left || ended.code() != Some(130) {
        return Err(format!("left: {left}\n{}", ended.describe()));
    }
    Ok(())
}

fn demo(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let start = Instant::now();
    let ended = good(roxie(lab, place, Side::Server, name, &["demo"])?)?;
    if start.elapsed() > DEMO_MAX {
        return Err(format!("took {:.1} s\n{}", start.elapsed().as_secs_f64(), ended.describe()));
    }
    let facts =
        ["SEND", "WRITE", "READ", "compare-and-swap", "fetch-and-add", "ICRC", "port shm", "p99", "loss 2 %"];
    facts.iter().try_for_each(|fact| says(&ended, fact))?;
    let plain = !ended.output.contains('\x1b') && !ended.output.contains('\r');
    if plain { Ok(()) } else { Err(format!("terminal codes in a file\n{}", ended.describe())) }
}

fn demo_netdev(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let words = ["demo", "--no-figures", "--netdev", lab.netdev(place)];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(&ended, lab.address(place))
}

fn demo_json(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(roxie(lab, place, Side::Server, name, &["demo", "--json"])?)?;
    let value: Value = serde_json::from_str(&ended.output).map_err(|error| error.to_string())?;
    let positive = |number: &Value| number.as_f64().is_some_and(|number| number > 0.0);
    let lengths = ["verified", "figures"].map(|list| value[list].as_array().map_or(0, Vec::len));
    let numbers = (0..5).all(|row| positive(&value["figures"][row]["number"]));
    let lossy = value["loss"]["verified"].as_array().map_or(0, Vec::len);
    let counted = positive(&value["loss"]["dropped"]) && positive(&value["loss"]["retransmitted"]);
    if value["ok"] == true && lengths == [5, 5] && numbers && lossy == 5 && counted {
        Ok(())
    } else {
        Err(ended.describe())
    }
}

fn bench(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(roxie(lab, place, Side::Server, name, &["bench", "--json"])?)?;
    let value: Value = serde_json::from_str(&ended.output).map_err(|error| error.to_string())?;
    let rows = value["rows"].as_array().cloned().unwrap_or_default();
    let measured = |row: &Value| {
        ["rdma_udp", "rdma_shm", "tcp"].iter().all(|path| row[*path].as_f64().is_some_and(|n| n > 0.0))
    };
    if rows.len() == 5 && rows.iter().all(measured) { Ok(()) } else { Err(ended.describe()) }
}

fn devinfo_facts(lab: &Lab, place: &Place, _: &str) -> Result<(), String> {
    let value = devinfo(lab, place, Side::Server)?;
    let facts = [
        ("/device/name", Value::from("roxie0")),
        ("/device/netdev", Value::from("veth0")),
        ("/port/state", Value::from("active")),
        ("/port/active_mtu", Value::from(1024)),
    ];
    let wrong = facts.iter().find(|(at, wanted)| value.pointer(at) != Some(wanted));
    wrong.map_or(Ok(()), |(at, wanted)| Err(format!("{at} is not {wanted} in {value}")))
}

fn doctor(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(roxie(lab, place, Side::Server, name, &["doctor"])?)?;
    ["kernel", "UDP GSO/GRO", "port 4791", "libraries", "memfd", "a SEND arrived"]
        .iter()
        .try_for_each(|check| says(&ended, check))?;
    let ended = good(roxie(lab, place, Side::Server, name, &["doctor", "--json"])?)?;
    let value: Value = serde_json::from_str(&ended.output).map_err(|error| error.to_string())?;
    if value["ok"] == true { Ok(()) } else { Err(ended.describe()) }
}

fn environment(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = lab.roxie();
    let script = format!("eval \"$({} env --name mlx5_0)\" && ibv_devices", program.display());
    let words = ["run", "--", "sh", "-c", &script];
    says(&good(roxie(lab, place, Side::Server, name, &words)?)?, "mlx5_0")
}

fn refusals(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let roxie_is = lab.roxie().display().to_string();
    let full = format!("{roxie_is} doctor --json >/dev/full");
    let name_of_environment = format!("ROXIE_NAME='a b' {roxie_is} run -- true");
    let unknown = format!("ROXIE_NETDEB=lo {roxie_is} env --json");
    let value = format!("ROXIE_STATS=no {roxie_is} env --json");
    // The program may be below /tmp.
    let read_only = format!(
        "mount --bind $(dirname {roxie_is}) /mnt
         for dir in /tmp /var/tmp; do mount -t tmpfs -o ro none $dir; done
         exec env -u TMPDIR -u XDG_RUNTIME_DIR /mnt/roxie doctor"
    );
    let table: [(&[&str], i32, &str); 14] = [
        (&["run", "--", "sh", "-c", &unknown], 0, "ROXIE_NETDEB has no effect; did you mean ROXIE_NETDEV?"),
        (&["run", "--", "sh", "-c", &value], 0, "ROXIE_STATS=no is none of 0, 1"),
        (&["run", "--", "unshare", "-rm", "sh", "-c", &read_only], 1, "BAD   libraries"),
        (&["run", "--bogus", "--", "true"], 2, "unexpected argument"),
        (&["run", "--", "sh", "-c", &full], 2, "No space left on device"),
        (&["run", "--", "sh", "-c", &name_of_environment], 2, "cannot name a device"),
        (&["run", "--", "no-such-program"], 127, "command not found"),
        (&["run", "--", "/etc/passwd"], 126, "not executable"),
        (&["run", "--", ""], 127, "the command is an empty word"),
        (&["run", "--name", "", "--", "true"], 2, "has an empty part"),
        (&["run", "--ingress", "", "--", "true"], 2, "no stage is named"),
        (&["run", "--egress", "impair:loss=200%", "--", "true"], 2, "0%..100%"),
        (&["run", "--netdev", "nonesuch", "--", "true"], 1, "choose one of lo"),
        (&["run"], 2, "COMMAND"),
    ];
    table.iter().try_for_each(|(words, code, text)| {
        let ended = roxie(lab, place, Side::Server, name, words)?;
        if ended.code() != Some(*code) {
            return Err(format!("expected exit code {code}\n{}", ended.describe()));
        }
        says(&ended, text)
    })
}

fn exit_codes(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = roxie(lab, place, Side::Server, name, &["run", "--", "sh", "-c", "exit 42"])?;
    if ended.code() == Some(42) { Ok(()) } else { Err(ended.describe()) }
}

/// The client starts when the server listens by TCP or rdma_cm. The exit code is that of the program that
/// fails. A server that goes on is ended.
fn pairs(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port().to_string();
    let pair = |words: &[&str]| {
        roxie(
            lab,
            place,
            Side::Server,
            name,
            &[&["pair", "--netdev", lab.netdev(place), "--"], words].concat(),
        )
    };
    let late = format!("sleep 1; exec rping -s -a 127.0.0.1 -C 3 -p {port}");
    let client = ["rping", "-c", "-a", "127.0.0.1", "-C", "3", "-v", "-p", &port];
    says(&good(pair(&[&["sh", "-c", &late, "--"][..], &client].concat())?)?, "ping data: rdma-ping-2")?;
    let program = lab.roxie().display().to_string();
    let checked = [&[&program[..], "check"], &client[..]].concat();
    let server = ["rping", "-s", "-a", "127.0.0.1", "-C", "3", "-p", &port, "--"];
    let ended = good(pair(&[&server[..], &checked].concat())?)?;
    if ended.output.contains("did not use RDMA") {
        return Err(ended.describe());
    }
    let serve = "import signal, socket, sys, time
def end(*_):
    print('asked to end', flush=True)
    time.sleep(0.5)
    sys.exit()
signal.signal(signal.SIGTERM, end)
s = socket.create_server(('127.0.0.1', 0))
time.sleep(99)";
    let server = ["python3", "-c", serve, "--"];
    for (client, code) in [("exit 0", 0), ("exit 42", 42)] {
        let ended = pair(&[&server[..], &["sh", "-c", client]].concat())?;
        says(&ended, "the server still runs 3 s after the client ended")?;
        if ended.code() != Some(code) || ended.output.matches("asked to end").count() != 1 {
            return Err(ended.describe());
        }
    }
    for (server, code) in [("exit 3", 3), ("exit 0", 1), ("kill -KILL $$", 128 + 9)] {
        let ended = pair(&["sh", "-c", server, "--", "echo", "a client"])?;
        says(&ended, "the server ended, and was not seen to listen")?;
        if ended.code() != Some(code) || ended.output.contains("a client") {
            return Err(ended.describe());
        }
    }
    Ok(())
}

/// The program and its threads have such stacks, too.
fn small_stack(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (program, port) = (lab.roxie().display().to_string(), lab.port());
    let rping = format!("rping -C 20 -a 127.0.0.1 -p {port}");
    let pair = format!("{rping} -s & {}; {rping} -c && wait", until_listening(port));
    let run = format!("{program} devinfo && {program} run -- sh -c \"{pair}\"");
    let script = format!("ulimit -s 64; {run} && echo all done");
    says(&good(roxie(lab, place, Side::Server, name, &["run", "--", "sh", "-c", &script])?)?, "all done")
}

fn starts_fast(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let mut took = Vec::new();
    for _ in 0..STARTS {
        let ended = good(roxie(lab, place, Side::Server, name, &["run", "--", "ibv_devices"])?)?;
        took.push(ended.took);
    }
    took.sort();
    let median = took[STARTS / 2];
    if median < START_MAX { Ok(()) } else { Err(format!("median of {STARTS} starts: {median:?}")) }
}
