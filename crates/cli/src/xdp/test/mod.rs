//! `roxie xdp test`: tests whether an interface supports what XDP needs, and accounts for every packet.

mod bench;
mod frame;
mod generate;
mod place;
mod report;
mod send;
mod sockets;
mod verdicts;
mod xsk;

use bpf::{Action, XdpAction};
use serde_json::json;
use sys::{Capability, Link, xdp_features};

use super::ability;
use super::args::TestArgs;
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Terminal};
use bench::{Bench, Flow};
use generate::Generator;
use place::Place;
use report::{Row, Verdict};

pub(super) use send::send;

/// MTU for multi-buffer packets.
const JUMBO: u32 = 9000;
/// Divisor of the packet count for multi-buffer packets: each costs as much as many short ones.
const LONG_SHARE: u64 = 10;

/// Runs all tests; fails if one failed.
pub(super) fn test(args: &TestArgs) -> Outcome {
    let place = match &args.netdev {
        Some(netdev) => Place::given(netdev, args.peer.as_deref())?,
        None => Place::own()?,
    };
    ability::driver(&place.dut, args.mode)?;
    ability::privileges(
        "testing with XDP programs and AF_XDP sockets",
        &[Capability::Bpf, Capability::NetAdmin, Capability::NetRaw],
    )?;
    let [sender, receiver_cpu] = cpu::pair();
    cpu::stay_on(sender);
    let mut bench = Bench { place, mode: args.mode, count: args.count, receiver_cpu };
    let terminal = (!args.json).then(Terminal::stdout);
    let only = args.only.as_deref().map(str::to_lowercase);
    let mut sink = Sink { terminal, only, rows: Vec::new() };

    let (mode, generator) = prepare(&bench)?;
    let source = generator.as_ref().map_or_else(
        || {
            format!(
                "no interface sends to {}: name the interface at the other end with --peer",
                bench.place.dut.name
            )
        },
        Generator::describe,
    );
    sink.begin(&bench, &mode, &source);
    match (generator, &bench.place.peer) {
        (Some(mut generator), Some(peer)) => {
            let paced = match &generator {
                Generator::Live { .. } => Some(Generator::socket(peer, &bench.place.ends(), frame::SHORT)?),
                Generator::Socket { .. } => None,
            };
            receiving(&bench, peer, &mut generator, paced, &mut sink);
        }
        _ => sink.skip(&SENT_TO, "no interface sends"),
    }
    sink.make(XMIT, || verdicts::ndo_xdp_xmit(&bench, XMIT));
    sink.make(TX_ONLY, || sockets::send(&bench, TX_ONLY));
    several_buffers(&mut bench, &mut sink);

    if sink.rows.is_empty() {
        let names: Vec<_> = SENT_TO.map(|test| test.0).into_iter().chain([XMIT, TX_ONLY]).collect();
        let names = [names, LONG_TESTS.map(|test| test.0).to_vec()].concat();
        return Err(Failure::new("no such test").hint(format!("there are: {}", names.join(", "))).code(2));
    }
    let (failed, lossy) = Row::bad(&sink.rows);
    if lossy > 0
        && let Some(terminal) = sink.terminal
    {
        terminal.line("LOSSY: every packet is accounted for; more were sent than the receiver takes.");
        terminal.line("       With fewer packets (--count) its buffer holds them.");
    }
    if args.json {
        let rows: Vec<_> = sink.rows.iter().map(Row::json).collect();
        let report = json!({
            "netdev": bench.place.dut.name,
            "peer": bench.place.peer.as_ref().map(|peer| &peer.name),
            "own_namespace": bench.place.own,
            "mode": mode,
            "generator": source,
            "ok": failed == 0 && lossy == 0,
            "failed": failed,
            "lossy": lossy,
            "tests": rows,
        });
        terminal::json_lines(&report)?;
    }
    match failed {
        0 => Ok(()),
        1 => Err(Failure::new("1 test failed")),
        n => Err(Failure::new(format!("{n} tests failed"))),
    }
}

/// A test of what the interface does with packets of its peer: the name, and the test.
type Test = (&'static str, fn(&Bench, &Link, Flow<'_>) -> Outcome<Row>);

const TO_CPU: &str = "XDP_REDIRECT to a CPU";
/// Tests that need an interface that sends.
const SENT_TO: [Test; 7] = [
    ("XDP_PASS", |bench, _, flow| verdicts::pass(bench, flow)),
    ("XDP_DROP", |bench, _, flow| verdicts::drop(bench, flow)),
    ("XDP_TX", verdicts::tx),
    ("XDP_REDIRECT to a device", |bench, _, flow| verdicts::to_device(bench, flow)),
    (TO_CPU, |bench, _, flow| verdicts::to_cpu(bench, flow)),
    ("AF_XDP rx drop", |bench, _, flow| sockets::receive(bench, flow, frame::SHORT)),
    ("AF_XDP l2 forward", sockets::forward),
];
/// Tests with multi-buffer packets.
const LONG_TESTS: [Test; 3] = [
    ("multi-buffer XDP_PASS", |bench, _, flow| verdicts::pass(bench, flow)),
    ("multi-buffer XDP_TX", verdicts::tx),
    ("multi-buffer AF_XDP", |bench, _, flow| sockets::receive(bench, flow, frame::LONG)),
];
/// Tests of sending.
const XMIT: &str = "ndo_xdp_xmit";
const TX_ONLY: &str = "AF_XDP tx only";

fn receiving(
    bench: &Bench,
    peer: &Link,
    generator: &mut Generator,
    mut paced: Option<Generator>,
    sink: &mut Sink,
) {
    for (name, test) in SENT_TO {
        // The queue to another CPU does not count what it drops.
        let paced = paced.as_mut().filter(|_| name == TO_CPU);
        let flow = Flow { name, count: bench.count, generator: paced.unwrap_or(&mut *generator) };
        sink.make(name, || test(bench, peer, flow));
    }
}

fn several_buffers(bench: &mut Bench, sink: &mut Sink) {
    if bench.place.own
        && let Err(failure) = bench.place.set_mtu(JUMBO)
    {
        return sink.skip(&LONG_TESTS, &failure.to_string());
    }
    let Some(peer) = bench.place.peer.clone() else { return sink.skip(&LONG_TESTS, "no interface sends") };
    if bench.place.dut.mtu.min(peer.mtu) < frame::LONG as u32 {
        return sink.skip(&LONG_TESTS, &format!("the MTU is below {}", frame::LONG));
    }
    let mut generator = match Generator::socket(&peer, &bench.place.ends(), frame::LONG) {
        Ok(generator) => generator,
        Err(failure) => return sink.skip(&LONG_TESTS, &failure.to_string()),
    };
    for (name, test) in LONG_TESTS {
        let flow = Flow { name, count: (bench.count / LONG_SHARE).max(1), generator: &mut generator };
        sink.make(name, || test(bench, &peer, flow));
    }
}

/// Where programs and sockets run, and the generator.
fn prepare(bench: &Bench) -> Outcome<(String, Option<Generator>)> {
    let program = bench.on_dut(&Bench::recipe(Action::Verdict(XdpAction::Drop)))?;
    let mode = program.attached.mode();
    if let Some(why) = program.attached.not_native() {
        say!("roxie: warning: not in the driver: {why}");
    }
    let Some(peer) = &bench.place.peer else { return Ok((mode.to_string(), None)) };
    // A veth takes redirected packets only while its peer has a program in the driver.
    let live = mode == sys::XdpMode::Native && xdp_features(peer.index).is_ok_and(|features| features.xmit());
    let ends = bench.place.ends();
    let generator = match live {
        true => Generator::live(peer, &ends),
        false => Generator::socket(peer, &ends, frame::SHORT),
    };
    std::mem::drop(program);
    let sockets = sockets::mode(bench)?;
    Ok((format!("{mode} mode, AF_XDP {sockets}"), Some(generator?)))
}

/// Prints results as soon as they are known.
struct Sink {
    /// None while JSON is collected.
    terminal: Option<Terminal>,
    /// Text that names must contain, in lower case.
    only: Option<String>,
    rows: Vec<Row>,
}

impl Sink {
    fn begin(&self, bench: &Bench, mode: &str, source: &str) {
        let Some(terminal) = self.terminal else { return };
        let place = &bench.place;
        let note = if place.own { ", a veth pair in a new namespace" } else { "" };
        terminal.line(&format!("{}{note}: {mode}", place.dut.name));
        terminal.line(&format!("packets from: {source}"));
        Row::heading(terminal);
    }

    /// Reports that these tests, as far as they are selected, do not run.
    fn skip(&mut self, tests: &[Test], why: &str) {
        tests.iter().for_each(|(name, _)| self.make(name, || Ok(Row::skipped(name, why))));
    }

    /// Runs a test, if it is selected.
    fn make(&mut self, name: &'static str, test: impl FnOnce() -> Outcome<Row>) {
        if self.only.as_ref().is_some_and(|only| !name.to_lowercase().contains(only)) {
            return;
        }
        let row = test().unwrap_or_else(|failure| Row {
            verdict: Verdict::Wrong(failure.to_string()),
            ..Row::skipped(name, "")
        });
        if let Some(terminal) = self.terminal {
            row.show(terminal);
        }
        self.rows.push(row);
    }
}
