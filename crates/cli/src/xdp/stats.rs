//! `roxie xdp stats`: verdicts of the program, counters of the interface and its driver.

use std::thread;
use std::time::{Duration, Instant};

use bpf::recipe::{COUNTERS, Counter, SAMPLE_STATE};
use bpf::{MapKind, XdpAction};
use serde_json::{Map as Object, Value, json};
use sys::bpf::{Map, Program, extensions_of};
use sys::{Link, Netlink, driver_counters};

use super::args::StatsArgs;
use super::fill::ON_CPU;
use super::{interface, list};
use crate::failure::{During, Failure, Outcome};
use crate::losses;
use crate::terminal::{self, Terminal};

/// Prints the counters once, or repeatedly.
pub(super) fn stats(args: &StatsArgs) -> Outcome {
    let link = interface(&args.netdev)?;
    let Some(seconds) = args.watch else { return show(&link, &Snapshot::take(&link)?, None, args.json) };
    let mut before = (Instant::now(), Snapshot::take(&link)?);
    loop {
        thread::sleep(Duration::from_secs(seconds.into()));
        // The program may be replaced meanwhile.
        let link = interface(&args.netdev)?;
        let now = (Instant::now(), Snapshot::take(&link)?);
        let elapsed = now.0.duration_since(before.0).as_secs_f64();
        show(&link, &now.1, Some((&before.1, elapsed)), args.json)?;
        before = now;
    }
}

/// All counters, by group and name, in the order in which they are shown.
#[derive(Debug, Default)]
struct Snapshot {
    program_id: u32,
    rows: Vec<(&'static str, String, u64)>,
}

/// What the program on an interface did with packets, as far as it counts that: its verdicts, and packets
/// that did not arrive at another CPU.
pub(crate) fn decisions(link: &Link) -> Outcome<Vec<(String, u64)>> {
    let rows = Snapshot::take(link)?.rows.into_iter();
    let is_decision = |group: &str, name: &str| match group {
        "verdicts" => name.ends_with(".packets"),
        CPUMAP => name == "not_arrived.packets",
        _ => false,
    };
    let mut rows: Vec<_> = rows.filter(|row| row.2 > 0 && is_decision(row.0, &row.1)).collect();
    rows.sort();
    Ok(rows.into_iter().map(|(_, name, count)| (name, count)).collect())
}

impl Snapshot {
    fn take(link: &Link) -> Outcome<Snapshot> {
        let mut snapshot = Snapshot::default();
        if let Some(there) = link.xdp.first() {
            snapshot.program_id = there.program_id;
            // An unprivileged user may not read programs, only the counters of the interface.
            let called = extensions_of(there.program_id).unwrap_or_default();
            for id in [there.program_id].into_iter().chain(called) {
                // Of several recipes in a dispatcher the first one is shown.
                let is_shown = snapshot.of("verdicts").next().is_some();
                if let (false, Ok(program)) = (is_shown, Program::by_id(id)) {
                    snapshot.program(&program)?;
                }
            }
        }
        let counters =
            Netlink::new().and_then(|mut netlink| netlink.link_counters(link.index)).during("netlink")?;
        for (name, value) in [
            ("rx_packets", counters.rx_packets),
            ("rx_bytes", counters.rx_bytes),
            ("rx_errors", counters.rx_errors),
            ("rx_dropped", counters.rx_dropped),
            ("tx_packets", counters.tx_packets),
            ("tx_bytes", counters.tx_bytes),
            ("tx_errors", counters.tx_errors),
            ("tx_dropped", counters.tx_dropped),
        ] {
            snapshot.rows.push(("interface", name.to_owned(), value));
        }
        // Some drivers have none.
        let driver = driver_counters(&link.name).unwrap_or_default();
        let ours = driver.into_iter().filter(|(name, _)| name.contains("xdp") || name.contains("xsk"));
        snapshot.rows.extend(ours.map(|(name, value)| ("driver", name, value)));
        let losses = losses::of(link).into_iter();
        snapshot.rows.extend(losses.map(|loss| (LOST, loss.counter, loss.packets)));
        Ok(snapshot)
    }

    fn program(&mut self, program: &Program) -> Outcome {
        let info = program.info().during("program")?;
        if info.runs.0 > 0 {
            self.rows.push(("program", "runs".to_owned(), info.runs.0));
            self.rows.push(("program", "run_time_ns".to_owned(), info.runs.1));
        }
        let mut counters = Vec::new();
        for id in program.map_ids().during("program")? {
            let map = Map::by_id(id).during("map")?;
            if map.kind() == MapKind::Cpumap {
                self.on_cpus(&map)?;
            }
            // Other programs may have maps with the same name.
            if map.kind() != MapKind::PercpuArray || map.value_len() != Counter::LEN {
                continue;
            }
            let name = map.name().during("map")?;
            match name.split('.').next().unwrap_or(&name) {
                COUNTERS if has_verdicts(&map)? => counters.push((name.clone(), map)),
                SAMPLE_STATE => {
                    let sums = pair(&map, 0)?;
                    self.rows.push(("samples", "seen".to_owned(), sums.packets));
                    self.rows.push(("samples", "lost".to_owned(), sums.bytes));
                }
                _ => {}
            }
        }
        // Joined recipes: a packet goes to the next one only if it passes, so all but the last count PASS of
        // packets that others decide about.
        counters.sort_by_key(|(name, _)| (name.len(), name.clone()));
        let maps: Vec<Map> = counters.into_iter().map(|(_, map)| map).collect();
        if maps.is_empty() {
            return Ok(());
        }
        self.verdicts(&maps)?;
        let count = |group: &str, name: &str| {
            self.rows.iter().find(|row| row.0 == group && row.1 == name).map(|row| row.2)
        };
        if let (Some(arrived), Some(sent)) =
            (count(CPUMAP, "arrived.packets"), count("verdicts", "XDP_REDIRECT.packets"))
        {
            // Some may wait in the queue; a queue that is full drops.
            self.rows.push((CPUMAP, "not_arrived.packets".to_owned(), sent.saturating_sub(arrived)));
        }
        Ok(())
    }

    /// Packets that arrived at the CPUs of a CPUMAP, counted by the program in its entries, if roxie made it.
    fn on_cpus(&mut self, map: &Map) -> Outcome {
        let mut value = vec![0; map.value_size()];
        let mut ids = Vec::new();
        for cpu in 0..map.max_entries().during("map")? {
            let there = map.lookup(&cpu.to_ne_bytes(), &mut value).during("map")?;
            let id = value.get(4..8).and_then(|id| id.first_chunk()).map_or(0, |id| u32::from_ne_bytes(*id));
            if there && id != 0 && !ids.contains(&id) {
                ids.push(id);
            }
        }
        for id in ids {
            let program = Program::by_id(id).during("program")?;
            if program.info().during("program")?.name != ON_CPU {
                continue;
            }
            for id in program.map_ids().during("program")? {
                let map = Map::by_id(id).during("map")?;
                if map.name().during("map")? == COUNTERS {
                    let counter = pair(&map, XdpAction::Pass.number())?;
                    self.rows.push((CPUMAP, "arrived.packets".to_owned(), counter.packets));
                    self.rows.push((CPUMAP, "arrived.bytes".to_owned(), counter.bytes));
                }
            }
        }
        Ok(())
    }

    fn verdicts(&mut self, maps: &[Map]) -> Outcome {
        for action in XdpAction::ALL {
            let deciding = if action == XdpAction::Pass { maps.len() - 1 } else { 0 };
            let mut counter = Counter::default();
            for map in &maps[deciding..] {
                let one = pair(map, action.number())?;
                counter.packets += one.packets;
                counter.bytes += one.bytes;
            }
            self.rows.push(("verdicts", format!("{action}.packets"), counter.packets));
            self.rows.push(("verdicts", format!("{action}.bytes"), counter.bytes));
        }
        Ok(())
    }

    fn of<'a>(&'a self, group: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        self.rows.iter().filter(move |row| row.0 == group).map(|(_, name, value)| (name.as_str(), *value))
    }
}

/// Whether there is a counter for each verdict.
fn has_verdicts(map: &Map) -> Outcome<bool> {
    let last = XdpAction::ALL.len() as u32 - 1;
    map.lookup(&last.to_ne_bytes(), &mut vec![0; map.value_size()]).during("map")
}

/// The two numbers at `index`, summed over the CPUs.
pub(super) fn pair(map: &Map, index: u32) -> Outcome<Counter> {
    let mut values = vec![0; map.value_size()];
    let there = map.lookup(&index.to_ne_bytes(), &mut values).during("map")?;
    if !there || !values.len().is_multiple_of(Counter::LEN) {
        return Err(Failure::new("the map of counters was not made by roxie"));
    }
    let counters = values.as_chunks::<{ Counter::LEN }>().0.iter().map(Counter::parse);
    Ok(counters.fold(Counter::default(), |sum, one| Counter {
        packets: sum.packets + one.packets,
        bytes: sum.bytes + one.bytes,
    }))
}

const GROUPS: [&str; 7] = ["verdicts", "samples", CPUMAP, "program", "interface", "driver", LOST];
/// Group of the packets that were redirected to other CPUs.
const CPUMAP: &str = "cpumap";
/// Group of the counters that mean lost packets; they are also in the other groups. In the order of the
/// receive path.
const LOST: &str = "lost";

/// Prints numbers, or rates if the numbers of some seconds before are given.
fn show(link: &Link, now: &Snapshot, before: Option<(&Snapshot, f64)>, is_json: bool) -> Outcome {
    // The counters of another program cannot be compared.
    let before = before.filter(|(before, _)| before.program_id == now.program_id);
    let rate = |group: &str, name: &str, value: u64| {
        before.map(|(before, seconds)| {
            let old = before.of(group).find(|(known, _)| *known == name).map_or(0, |(_, value)| value);
            value.saturating_sub(old) as f64 / seconds
        })
    };
    if is_json {
        let mut object = Object::new();
        object.insert("interface".to_owned(), json!(link.name));
        object.insert(
            "programs".to_owned(),
            json!(link.xdp.iter().map(|xdp| list::program(link, *xdp)).collect::<Vec<_>>()),
        );
        for group in GROUPS {
            let value = |(name, value)| {
                let value = rate(group, name, value).map_or_else(|| json!(value), |rate| json!(rate.round()));
                (name.to_owned(), value)
            };
            let rows: Object<String, Value> = now.of(group).map(value).collect();
            if !rows.is_empty() {
                object.insert(group.to_owned(), Value::Object(rows));
            }
        }
        if before.is_some() {
            object.insert("per_second".to_owned(), json!(true));
        }
        terminal::json(&Value::Object(object));
        return Ok(());
    }
    let terminal = Terminal::stdout();
    let head = match link.xdp.first() {
        Some(there) => {
            let name = super::known_as(there.program_id);
            format!("{}: {name} (id {}, {} mode)", link.name, there.program_id, there.mode)
        }
        None => format!("{}: no XDP program", link.name),
    };
    terminal.heading(&head);
    for group in GROUPS {
        for (name, value) in now.of(group).filter(|(_, value)| *value > 0) {
            let is_named = group == LOST || group == CPUMAP;
            let shown = if is_named { format!("{group}: {name}") } else { name.to_owned() };
            let line = match rate(group, name, value) {
                Some(0.0) => continue,
                Some(rate) => format!("  {shown:<32} {rate:>16.0}/s"),
                None => format!("  {shown:<32} {value:>16}"),
            };
            terminal.line(&line);
        }
    }
    Ok(())
}
