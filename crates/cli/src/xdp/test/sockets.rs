//! The tests with AF_XDP: the three modes of xdpsock, on the rings of roxie's port.

use std::sync::atomic::Ordering;
use std::thread;

use bpf::recipe::Target;
use bpf::{Pick, Recipe, Select, XdpAction};

use sys::Link;

use super::bench::{Arrivals, Bench, Flow, On, nothing, of};
use super::frame;
use super::generate::Generator;
use super::report::Row;
use super::xsk::{Progress, Xsk};
use crate::cpu::stay_on;
use crate::failure::{During, Outcome};
use crate::xdp::recipe::redirect;

/// Most multi-buffer packets in flight: a quarter of the chunks, three of which each takes.
const LONG_WINDOW: u64 = 170;

/// Receives redirected packets with all their fragments: `rxdrop`.
pub(super) fn receive(bench: &Bench, flow: Flow<'_>, len: usize) -> Outcome<Row> {
    let program = to_socket(bench)?;
    let mut xsk = Xsk::open(&bench.place.dut, len > frame::SHORT)?;
    xsk.enter(program.targets(Target::Xsk)?)?;
    let (progress, dropped) = (Progress::default(), xsk.dropped());
    let window = if len > frame::SHORT { LONG_WINDOW } else { 0 };
    let row = thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(bench.receiver_cpu);
            xsk.receive(len, &progress);
        });
        let arrivals = Arrivals { count: &of(&progress.packets), dropped: &dropped, window };
        let row = bench.run(flow, &arrivals);
        progress.stop.store(true, Ordering::Relaxed);
        row
    })?;
    let wrong = progress.wrong.load(Ordering::Relaxed);
    Ok(row.require(wrong == 0, format!("{wrong} packets are not {len} bytes long")))
}

/// Sends packets of a socket: `txonly`.
pub(super) fn send(bench: &Bench, name: &'static str) -> Outcome<Row> {
    let place = &bench.place;
    let counting = place.peer.as_ref().map(|peer| bench.count_at(peer)).transpose()?;
    let mut generator = Generator::socket(&place.dut, &place.ends(), frame::SHORT)?;
    let count = || match &counting {
        Some(counting) => counting.count(XdpAction::Drop),
        None => super::verdicts::sent_by(&place.dut).during("counters"),
    };
    let flow = Flow { name, count: bench.count, generator: &mut generator };
    bench.run(flow, &Arrivals { count: &count, dropped: &nothing, window: 0 })
}

/// Forwards packets through a socket: `l2fwd`.
pub(super) fn forward(bench: &Bench, peer: &Link, flow: Flow<'_>) -> Outcome<Row> {
    let counting = bench.count_at(peer)?;
    let program = to_socket(bench)?;
    let mut xsk = Xsk::open(&bench.place.dut, false)?;
    xsk.enter(program.targets(Target::Xsk)?)?;
    let (progress, dropped) = (Progress::default(), xsk.dropped());
    thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(bench.receiver_cpu);
            xsk.forward(&progress);
        });
        let count = || counting.count(XdpAction::Drop);
        let row = bench.run(flow, &Arrivals { count: &count, dropped: &dropped, window: 0 });
        progress.stop.store(true, Ordering::Relaxed);
        row
    })
}

/// In a new namespace there are test packets only, so the program need not check them; xdpsock's program
/// does not either.
fn to_socket(bench: &Bench) -> Outcome<On> {
    let recipe = Bench::recipe(redirect(Target::Xsk, 1, Pick::RxQueue, XdpAction::Aborted));
    bench.on_dut(&if bench.place.own {
        Recipe { select: Select::All, counters: false, ..recipe }
    } else {
        recipe
    })
}

/// How sockets on the interface under test exchange packets with the driver.
pub(super) fn mode(bench: &Bench) -> Outcome<&'static str> {
    let _program = to_socket(bench)?;
    Ok(Xsk::open(&bench.place.dut, false)?.mode())
}
