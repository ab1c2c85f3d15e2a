//! Runs one test after another: attaches programs, sends packets, and accounts for each of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bpf::recipe::{COUNTERS, Target};
use bpf::{Action, ProgramKind, Recipe, Select, XdpAction};
use roxie::xdp::{Attached, Mode, attach};
use sys::Link;
use sys::bpf::Map;

use super::frame;
use super::generate::Generator;
use super::place::Place;
use super::report::{Row, Verdict};
use crate::failure::{Failure, Outcome};
use crate::xdp::stats;

/// What all tests share.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) place: Place,
    pub(super) mode: Mode,
    /// Number of packets of a test.
    pub(super) count: u64,
    /// The CPU where packets are received.
    pub(super) receiver_cpu: u32,
}

/// A program on an interface, and its definition.
#[derive(Debug)]
pub(super) struct On {
    pub(super) attached: Attached,
    definition: bpf::Program,
}

/// Name and packets of a test.
pub(super) struct Flow<'a> {
    pub(super) name: &'static str,
    pub(super) count: u64,
    pub(super) generator: &'a mut Generator,
}

/// How a test counts packets that arrive.
pub(super) struct Arrivals<'a> {
    /// Packets that arrived so far.
    pub(super) count: &'a dyn Fn() -> Outcome<u64>,
    /// Packets dropped so far, by reason, besides those that the interfaces count.
    pub(super) dropped: &'a dyn Fn() -> Outcome<Drops>,
    /// Most packets in flight, so that none is dropped uncounted; 0: no limit.
    pub(super) window: u64,
}

/// Time without an arrival after which the rest of the packets counts as lost. On a busy machine the kernel
/// and the counting thread wait for a CPU; with a sixth of this time, late packets counted as lost.
const SETTLE: Duration = Duration::from_secs(3);

impl Bench {
    /// A program that ends test packets, and no others, with this action.
    pub(super) fn recipe(action: Action) -> Recipe {
        Recipe {
            select: Select::Roce { port: frame::PORT },
            stages: Vec::new(),
            action,
            counters: true,
            frags: true,
        }
    }

    /// Attaches a program to the interface under test.
    pub(super) fn on_dut(&self, recipe: &Recipe) -> Outcome<On> {
        On::new(&self.place.dut, recipe, self.mode)
    }

    /// Attaches a program to `link` that counts and drops what arrives.
    pub(super) fn count_at(&self, link: &Link) -> Outcome<On> {
        On::new(link, &Bench::recipe(Action::Verdict(XdpAction::Drop)), Mode::Auto)
    }

    /// Sends, waits for the last packet, and compares the counts.
    pub(super) fn run(&self, flow: Flow<'_>, arrivals: &Arrivals<'_>) -> Outcome<Row> {
        let Flow { name, count, generator } = flow;
        let first = (self.drops(arrivals)?, (arrivals.count)()?);
        let arrived = || Ok((arrivals.count)()? - first.1);
        let lost =
            || Ok::<u64, Failure>(since(&first.0, self.drops(arrivals)?).iter().map(|drop| drop.1).sum());
        let start = Instant::now();
        let mut sent = 0;
        while sent < count {
            let chunk = generator.chunk().min(count - sent);
            generator.send(chunk)?;
            sent += chunk;
            let mut waited = Instant::now();
            let mut seen = arrived()?;
            while arrivals.window > 0
                && seen + arrivals.window < sent
                && seen + lost()? + arrivals.window < sent
            {
                let now = arrived()?;
                if now != seen {
                    (seen, waited) = (now, Instant::now());
                } else if waited.elapsed() > SETTLE {
                    break;
                }
            }
        }
        let mut last = (arrived()?, Instant::now());
        while last.0 < sent && last.1.elapsed() < SETTLE {
            let now = arrived()?;
            if now != last.0 {
                last = (now, Instant::now());
            } else if now + lost()? >= sent {
                break;
            }
        }
        let seconds = last.1.duration_since(start).as_secs_f64();
        let mut drops = since(&first.0, self.drops(arrivals)?);
        drops.retain(|drop| drop.1 > 0);
        let accounted = last.0 + drops.iter().map(|drop| drop.1).sum::<u64>();
        let verdict = match accounted.cmp(&sent) {
            std::cmp::Ordering::Equal if drops.is_empty() => Verdict::Exact,
            std::cmp::Ordering::Equal => Verdict::Lossy,
            std::cmp::Ordering::Less => Verdict::Wrong(format!("{} packets vanished", sent - accounted)),
            std::cmp::Ordering::Greater => Verdict::Wrong(format!("{} packets too many", accounted - sent)),
        };
        Ok(Row { name, sent, out: last.0, drops, seconds, verdict })
    }

    /// Drops of the interface under test come first.
    fn drops(&self, arrivals: &Arrivals<'_>) -> Outcome<[Drops; 2]> {
        Ok([self.place.dropped()?, (arrivals.dropped)()?])
    }
}

/// Packets dropped since `before`, each counted once: a driver may also count what an AF_XDP socket
/// dropped.
fn since(before: &[Drops; 2], mut now: [Drops; 2]) -> Drops {
    for (now, before) in now.iter_mut().zip(before) {
        for (drop, (_, old)) in now.iter_mut().zip(before) {
            drop.1 = drop.1.saturating_sub(*old);
        }
    }
    let [mut drops, others] = now;
    let counted: u64 = others.iter().map(|drop| drop.1).sum();
    if let Some((_, received)) = drops.first_mut() {
        *received = received.saturating_sub(counted);
    }
    drops.extend(others);
    drops
}

/// Dropped packets by place.
pub(super) type Drops = Vec<(String, u64)>;

/// For tests that count no drops themselves.
pub(super) fn nothing() -> Outcome<Drops> {
    Ok(Vec::new())
}

/// A count that another thread updates.
pub(super) fn of(counter: &AtomicU64) -> impl Fn() -> Outcome<u64> {
    || Ok(counter.load(Ordering::Relaxed))
}

impl On {
    pub(super) fn new(link: &Link, recipe: &Recipe, mode: Mode) -> Outcome<On> {
        let definition = recipe.program("roxie_test", ProgramKind::Xdp);
        let definition = definition.map_err(|error| Failure::new(error.to_string()))?;
        let attached = attach(link.index, &definition, mode)
            .map_err(|error| Failure::new(format!("{}: {error}", link.name)))?;
        Ok(On { attached, definition })
    }

    pub(super) fn map(&self, name: &str) -> Outcome<&Map> {
        let map = self.definition.map(name).and_then(|at| self.attached.map(at));
        map.ok_or_else(|| Failure::new(format!("the program has no map {name}")))
    }

    /// The map of [`Action::Redirect`].
    pub(super) fn targets(&self, target: Target) -> Outcome<&Map> {
        self.map(target.map_name())
    }

    /// Packets with this verdict so far.
    pub(super) fn count(&self, action: XdpAction) -> Outcome<u64> {
        Ok(stats::pair(self.map(COUNTERS)?, action.number())?.packets)
    }
}
