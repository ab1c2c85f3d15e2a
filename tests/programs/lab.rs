//! `roxie lab`: hosts for programs, made as root and without privileges, and removed completely.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;

use crate::case::{Case, good, roxie, says, until_listening};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let case = |user, what, program, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        let place = Place::new(Topology::Loopback, Family::V4, user);
        Case::new(place, what, program, move |lab, name| run(lab, &place, name))
    };
    for user in [User::Root, User::Ordinary] {
        cases.extend([
            case(user, "roxie lab joins programs", "rping", joins),
            case(user, "roxie lab up and down as often as one likes", "flock", idempotent),
            case(user, "roxie lab interrupted", "timeout", interrupted),
        ]);
    }
    cases.extend([
        case(User::Root, "roxie lab loses packets", "ib_write_bw", loses),
        case(User::Ordinary, "netdevs deleted under programs", "rping", deleted),
        case(User::Ordinary, "roxie lab without privileges says what it cannot", "sh", cannot),
    ]);
    cases
}

/// Runs a script in which `$roxie` is the program and `$lab` a unique name; the lab is removed at the end.
/// `mine` prints what `lab list --json` has about it; `rping_listens` and `perftest_listens` wait for
/// such a server on its host h1.
fn script(lab: &Lab, place: &Place, name: &str, text: &str) -> Result<Ended, String> {
    let roxie_is = lab.roxie().display().to_string();
    let nth = lab.port();
    let text = format!(
        "set -e; roxie={roxie_is}; lab=t{nth}; trap '$roxie lab down $lab >/dev/null' EXIT
         mine() {{ $roxie lab list --json | awk '/^    \"name\"/ {{ on = /\"t{nth}\"/ }} on'; }}
         rping_listens() {{ $roxie lab exec --lab $lab h1 -- sh -c \"{}\"; }}
         perftest_listens() {{ $roxie lab exec --lab $lab h1 -- sh -c \"{}\"; }}
         {text}",
        until_listening(7174),
        until_listening(18515)
    );
    roxie(lab, place, Side::Server, name, &["run", "--", "sh", "-c", &text])
}

fn joins(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(script(
        lab,
        place,
        name,
        "$roxie lab up $lab --hosts 3 --mtu 9000 --ipv6
         $roxie lab exec --lab $lab h2 -- ls /sys/class/net | tr '\\n' ' '
         $roxie lab exec --lab $lab h1 --run -- rping -s -a h1 -C 10 -V & server=$!
         rping_listens; $roxie lab exec --lab $lab h3 --run -- rping -c -a h1 -C 10 -V; wait $server
         $roxie lab exec --lab $lab h1 -- $roxie run -- rping -s -a fd77::1 -C 10 -V & server=$!
         rping_listens
         $roxie lab exec --lab $lab h2 -- $roxie run -- rping -c -a fd77::1 -C 10 -V; wait $server
         $roxie lab exec --lab $lab h1 --run -- ibv_devinfo
         env -u LD_AUDIT -u LD_LIBRARY_PATH $roxie lab exec --lab $lab h1 -- ibv_devices || true
         $roxie lab exec --lab $lab h1 -- sh -c 'exit 7' || echo code $?",
    )?)?;
    says(&ended, "ibv_devices has no device of roxie on this host: put --run in front of it")?;
    ["3 hosts, MTU 9000", "h3    10.77.0.3 fd77::3", "eth0 lo", "active_mtu:\t\t4096", "code 7"]
        .iter()
        .try_for_each(|fact| says(&ended, fact))
}

fn idempotent(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(script(
        lab,
        place,
        name,
        "$roxie lab down $lab
         $roxie lab up $lab >/dev/null; first=$(mine); $roxie lab up $lab
         [ \"$first\" ] && [ \"$first\" = \"$(mine)\" ] && echo the same
         $roxie lab up $lab --hosts 4 2>&1 || echo code $?
         $roxie lab exec --lab $lab h7 -- true 2>&1 || true
         $roxie lab exec --lab $lab h1 -- sleep 60 & guest=$!
         $roxie lab exec --lab $lab h1 -- sh -c \"$roxie lab down $lab\" 2>&1 || true
         sleep 0.1; $roxie lab down $lab; wait $guest || echo guest $?
         $roxie lab exec --lab $lab h1 -- true 2>&1 || true
         $roxie lab down $lab
         exec 9>${TMPDIR:-/tmp}/$lab.flock; flock 9; $roxie lab up $lab >/dev/null; exec 9>&-
         flock -n ${TMPDIR:-/tmp}/$lab.flock echo nothing inherited; rm ${TMPDIR:-/tmp}/$lab.flock",
    )?)?;
    let facts = [
        "the same",
        "a lab with this name but other options exists",
        "code 1",
        "has no host 'h7'\n       there are: h1, h2",
        "guest 143",
        "' is up\n       create it first: roxie lab up ",
        "nothing inherited",
    ];
    facts.iter().try_for_each(|fact| says(&ended, fact))?;
    // In a user namespace root is another user, without labs.
    if place.user == User::Root { says(&ended, "this shell is on one of its hosts") } else { Ok(()) }
}

/// A killed `lab up` must leave a complete lab or nothing. The process that holds the lab notices the kill
/// when it has made all namespaces, which takes longer on a loaded machine.
fn interrupted(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    good(script(
        lab,
        place,
        name,
        "holders() { grep -lz \"[{]\\\"name\\\":\\\"$lab\\\"\" /proc/[0-9]*/cmdline 2>/dev/null | wc -l; }
         for delay in 0.001 0.004 0.008 0.012 0.016 0.02 0.03 0.05; do
             timeout -s KILL $delay $roxie lab up $lab --hosts 8 >/dev/null 2>&1 || true
             for try in $(seq 100); do
                 sleep 0.1
                 up=$($roxie lab list | grep -c \"^$lab:\") || true
                 left=$(holders)
                 [ $left = $up ] && break
             done
             [ $left = $up ] || { echo \"killed after $delay s: $up labs, $left holders\"; exit 1; }
             $roxie lab down $lab >/dev/null
             for try in $(seq 100); do [ $(holders) = 0 ] && break; sleep 0.1; done
             [ $(holders) = 0 ] || { echo something is left; exit 1; }
         done",
    )?)
    .map(drop)
}

fn loses(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(script(
        lab,
        place,
        name,
        "$roxie lab up $lab --loss 1/1000
         $roxie lab exec --lab $lab h1 --run -- ib_write_bw -n 500 >/dev/null & server=$!
         perftest_listens; export ROXIE_STATS=1
         $roxie lab exec --lab $lab h2 --run -- ib_write_bw -n 500 10.77.0.1; wait $server
         $roxie lab exec --lab $lab h2 -- $roxie devinfo --json",
    )?)?;
    says(&ended, "loss 0.1% (by XDP)")?;
    // 500 messages of 64 packets: 32 lost on average, none once in 10^13 runs.
    says(&ended, "retransmitted_pkts")
}

/// Deletes both ends of a veth pair. Programs that wait must get an error, and nothing may panic.
fn deleted(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = good(script(
        lab,
        place,
        name,
        "cut() {
             $roxie lab up $lab >/dev/null; cd ${TMPDIR:-/tmp}
             timeout 9 $roxie lab exec --lab $lab h1 --run -- $2 >$lab.1 2>&1 & server=$!
             $1
             timeout 9 $roxie lab exec --lab $lab h2 --run -- $3 >$lab.2 2>&1 & client=$!; sleep 2
             $roxie lab exec --lab $lab h1 -- ip link delete eth0
             wait $server && echo server ended well || echo server code $?
             wait $client && echo client ended well || echo client code $?
             cat $lab.1 $lab.2; rm $lab.1 $lab.2; $roxie lab down $lab
         }
         cut rping_listens 'rping -s -a h1' 'rping -c -a h1'
         cut perftest_listens 'ib_send_bw -n 1000000' 'ib_send_bw -n 1000000 h1'",
    )?)?;
    for waits_or_panics in ["code 124", "ended well", "panicked"] {
        if ended.output.contains(waits_or_panics) {
            return Err(format!("{waits_or_panics}\n{}", ended.describe()));
        }
    }
    says(&ended, "cma detected device removal!!!!")?;
    says(&ended, "Failed status 5")
}

fn cannot(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let up = "if ! $roxie lab up $lab --loss 1%; then [ \"$(mine)\" ] || echo nothing is left; fi";
    let ended = script(lab, place, name, up)?;
    if ended.output.contains("by netem") {
        return Ok(());
    }
    says(&ended, "no loss: XDP programs cannot be loaded here, and the kernel has no netem")?;
    says(&ended, "nothing is left")
}
