//! `roxie capture` in the peer's kernel while its Soft-RoCE talks to roxie here. Debian 12's kernel has no
//! TCX, so the capture uses clsact filters.

use std::time::Duration;

use roxie_tests::pair::Ready;
use roxie_tests::place::Port;
use roxie_tests::process::eventually;

use crate::dispatcher::Case;
use crate::end::End;
use crate::machine::{Machine, good};

const LIMIT: Duration = Duration::from_secs(40);
/// The data of rping's first round: in a READ response, and back in a WRITE.
const TEXT: &str = "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ";

pub(crate) const CASES: [Case; 1] =
    [("captures/in the peer's kernel, both directions with their payload", payload)];

fn payload(machine: &Machine, name: &str) -> Result<(), String> {
    let service = machine.port();
    let word = service.to_string();
    let rping = |role| ["rping", role, "-a", End::Rxe.address(false), "-p", &word, "-C", "2", "-v"];
    let mut server = machine.start(End::Rxe, name, Port::Udp, &rping("-s"))?;
    machine.wait_ready(End::Rxe, &mut server, Ready::Cm(service))?;
    let script = "echo $$ >/tmp/capture.pid; exec /root/roxie capture read -i eth0 --format struct";
    let words = ["sh", "-c", script];
    let mut capture = machine.start(End::Rxe, &format!("{name} capture"), Port::Udp, &words)?;
    let begun =
        "tc filter show dev eth0 egress | grep -q roxie_tap || ls -l /proc/[0-9]*/fd | grep -q bpf_link";
    if !eventually(LIMIT, || capture.has_ended() || machine.command(begun).is_ok()) {
        return Err(format!("it does not listen\n{}", capture.wait(Duration::ZERO).describe()));
    }
    let mut client = machine.start(End::Roxie, name, Port::Udp, &rping("-c"))?;
    good(client.wait(LIMIT), &mut server)?;
    good(server.wait(LIMIT), &mut client)?;
    machine.command("kill -INT $(cat /tmp/capture.pid)")?;
    let seen = good(capture.wait(LIMIT), &mut client)?;
    let senders_of_text: Vec<&str> = seen
        .output
        .split("Pkt len: ")
        .filter(|packet| packet.contains(TEXT))
        .filter_map(|packet| packet.split_once("saddr; ")?.1.lines().next())
        .collect();
    let wanted = [End::Roxie, End::Rxe].map(|end| end.address(false));
    let both = senders_of_text == wanted;
    both.then_some(()).ok_or_else(|| format!("'{TEXT}' by {senders_of_text:?}\n{}", seen.describe()))
}
