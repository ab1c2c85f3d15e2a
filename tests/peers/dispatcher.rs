//! Debian's xdp-tools on a kernel with BPF trampolines: roxie behind another program in libxdp's
//! dispatcher, and traced by xdpdump.

use std::time::Duration;

use roxie_tests::pair::Ready;
use roxie_tests::place::Port;

use crate::end::End;
use crate::machine::{Machine, good};

/// Runs a command in namespace `a` with the bpf file system, which `ip netns exec` hides.
const IN_A: &str = "nsenter --net=/run/netns/a";
/// A verified ping takes at least six packets, and xdpdump shows each at entry and exit.
const PINGS: &str = "20";
const SEEN_MIN: u64 = 200;
const LIMIT: Duration = Duration::from_secs(40);

/// Name and function of a case.
pub(crate) type Case = (&'static str, fn(&Machine, &str) -> Result<(), String>);

pub(crate) const CASES: [Case; 3] = [
    ("xdp-tools/xdpdump sees the packets of roxie's program", traced),
    ("xdp-tools/behind xdp-filter in libxdp's dispatcher, seen by xdpdump", dispatched),
    ("xdp-tools/a recipe between xdp-filter and a later program in libxdp's dispatcher", recipe),
];

fn traced(machine: &Machine, name: &str) -> Result<(), String> {
    ping(machine, name, "roxie_steer", "zero-copy, 1 queue")
}

fn dispatched(machine: &Machine, name: &str) -> Result<(), String> {
    machine.command(&format!("{IN_A} xdp-filter load -m native -p allow wire"))?;
    let result = behind_filter(machine, name);
    result.and(machine.command(&format!("{IN_A} xdp-loader unload wire --all")))
}

fn recipe(machine: &Machine, _: &str) -> Result<(), String> {
    machine.command(&format!("{IN_A} xdp-filter load -m native -p allow wire"))?;
    let result = between(machine);
    result.and(machine.command(&format!("{IN_A} xdp-loader unload wire --all")))
}

fn between(machine: &Machine) -> Result<(), String> {
    // Its maps cannot be filled, so it does not stay.
    let refused = machine.ask(&format!("! {IN_A} ./roxie xdp attach wire --recipe redirect:to=missing0"))?;
    let left = machine.ask(&format!("{IN_A} xdp-loader status wire"))?;
    if left.contains("roxie_redirect") {
        return Err(format!("a program with incomplete maps stays\n{refused}{left}"));
    }
    let attached = machine.ask(&format!("{IN_A} ./roxie xdp attach wire --recipe access:deny=10.98.0.77"))?;
    machine.command(&format!(
        "./roxie xdp object /tmp/xsk.o && {IN_A} xdp-loader load -m native wire /tmp/xsk.o && \
         ip netns exec b ping -c 3 10.98.0.1"
    ))?;
    let all = [
        (attached, "roxie_access attached"),
        (machine.ask(&format!("{IN_A} xdp-loader status wire"))?, "roxie_access"),
        (machine.ask(&format!("{IN_A} xdp-loader status wire"))?, "xdpfilt"),
        (machine.ask(&format!("{IN_A} xdp-loader status wire"))?, "roxie_xsk"),
        (machine.ask(&format!("{IN_A} ./roxie xdp map get wire access"))?, "10.98.0.77"),
        (machine.ask(&format!("{IN_A} ./roxie xdp stats wire"))?, "XDP_PASS.packets"),
    ];
    let missing = all.iter().find(|(said, wanted)| !said.contains(wanted));
    missing.map_or(Ok(()), |(said, wanted)| Err(format!("'{wanted}' is not in the output\n{said}")))
}

fn behind_filter(machine: &Machine, name: &str) -> Result<(), String> {
    let outlook = format!("{IN_A} ./roxie devinfo --netdev wire --port xsk");
    let alone = machine.ask(&outlook)?;
    if !alone.contains("xdp_dispatcher") || !alone.contains("roxie xdp object") {
        return Err(format!("neither the dispatcher nor what to do about it is named\n{alone}"));
    }
    machine.command(&format!(
        "./roxie xdp object /tmp/xsk.o && {IN_A} xdp-loader load -m native wire /tmp/xsk.o"
    ))?;
    // A second process finds the program as the first has left it.
    for _ in 0..2 {
        ping(machine, name, "roxie_xsk", "zero-copy, 1 queue, program id")?;
    }
    let status = machine.ask(&format!("{IN_A} xdp-loader status wire"))?;
    let both = status.contains("roxie_xsk") && status.contains("xdpfilt");
    both.then_some(()).ok_or_else(|| format!("the dispatcher has lost a program\n{status}"))
}

/// Runs rping from `b` to `a` while xdpdump traces `program`; the server's message about its port must
/// contain `port`.
fn ping(machine: &Machine, name: &str, program: &str, port: &str) -> Result<(), String> {
    let service = machine.port();
    let word = service.to_string();
    let common = ["-V", "-C", PINGS, "-a", End::A.address(false), "-p", &word];
    let start = |end, role| {
        let words = [&["rping", role], &common[..]].concat();
        machine.start(end, name, Port::Native, &words)
    };
    let mut server = start(End::A, "-s")?;
    machine.wait_ready(End::A, &mut server, Ready::Cm(service))?;
    machine.command(&format!(
        "{IN_A} xdpdump -i wire -p {program} --rx-capture entry,exit -w /tmp/seen.pcap >/tmp/seen.log 2>&1 & \
         echo $! >/tmp/seen.pid; \
         for i in $(seq 100); do grep -q 'listening on' /tmp/seen.log && exit; sleep 0.1; done; \
         cat /tmp/seen.log; exit 1"
    ))?;
    let mut client = start(End::B, "-c")?;
    let client_ended = good(client.wait(LIMIT), &mut server)?;
    let server_ended = good(server.wait(LIMIT), &mut client)?;
    let seen = machine.ask(
        "kill -INT $(cat /tmp/seen.pid); \
         for i in $(seq 50); do grep -q captured /tmp/seen.log && break; sleep 0.1; done; cat /tmp/seen.log",
    )?;
    let count = seen.lines().find_map(|line| line.strip_suffix(" packets captured")?.parse::<u64>().ok());
    if count.is_none_or(|count| count < SEEN_MIN) {
        return Err(format!("xdpdump has seen fewer than {SEEN_MIN} packets\n{seen}"));
    }
    let said = format!("roxie: port xsk, native mode, {port}");
    if server_ended.output.contains(&said) {
        return Ok(());
    }
    Err(format!("'{said}' is not in the output\n{}{}", server_ended.describe(), client_ended.describe()))
}
