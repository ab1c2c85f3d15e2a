//! `roxie xdp diff` and `roxie xdp bench`: a program in the kernel beside the same one in roxie's machine.

mod bench;
mod twins;

use std::io::Read;

use roxie_capture::filter::FilterOptions;
use roxie_capture::live::{CapturePoint, Options};
use roxie_capture::source::Source;
use serde_json::{Value, json};
use wire::capture::LinkType;

use super::args::DiffArgs;
use super::source;
use crate::capture::{Packets, open, start};
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::frames::hex_digits;
use crate::terminal::{self, Terminal, Tone};
use twins::{ENTRIES_EACH, MapDifference, NOT_COMPARED, Results, Twins, verdict_name};

pub(super) use bench::bench;

/// Differences that are shown; further ones are counted.
const SHOWN_MAX: usize = 20;
/// What is said of a program that asks for receive hints.
const NO_HINTS: &str = "no packet has receive hints: the kernel's test run gives none (ENODATA)";
/// Bytes of a value or packet in a line.
const BYTES_SHOWN: usize = 24;

/// Sums over all packets.
#[derive(Default)]
struct Sums {
    packets: u64,
    differing: u64,
    /// Packets that are no Ethernet frames, or that the kernel's test run does not take.
    left_out: u64,
    verdicts: std::collections::BTreeMap<String, u64>,
    shown: Vec<Value>,
}

/// Compares packet by packet; fails with code 1 if there is a difference.
pub(super) fn diff(args: &DiffArgs) -> Outcome {
    let source = source::load(&args.source).map_err(|failure| failure.code(NOT_COMPARED))?;
    let [here, _] = cpu::pair();
    cpu::stay_on(here);
    let name = source.program.name.clone();
    let mut twins = Twins::new(source.program).map_err(|failure| failure.code(NOT_COMPARED))?;
    let mut packets = packets(args).map_err(|failure| failure.code(NOT_COMPARED))?;
    let terminal = Terminal::stdout();
    let mut sums = Sums::default();
    while args.count.is_none_or(|count| sums.packets < count) {
        let record =
            packets.next_record().map_err(|error| Failure::new(error.to_string()).code(NOT_COMPARED))?;
        let Some(record) = record else { break };
        let (number, is_ethernet) = (record.number, record.decode_as.link_type == LinkType::ETHERNET);
        let results = if is_ethernet { twins.run(record.data)? } else { None };
        let Some(results) = results else {
            sums.left_out += 1;
            continue;
        };
        sums.packets += 1;
        *sums.verdicts.entry(verdict_name(results.kernel.verdict)).or_default() += 1;
        let maps = twins.compare_maps(ENTRIES_EACH, SHOWN_MAX)?;
        if let Some(difference) = of_packet(number, &results, &maps) {
            sums.differing += 1;
            if sums.shown.len() < SHOWN_MAX {
                if !args.json {
                    show(terminal, &difference);
                }
                sums.shown.push(difference);
            }
            // After the first difference of a map, later ones follow from it.
            if !maps.is_empty() {
                break;
            }
        }
    }
    let at_end = if sums.differing == 0 { twins.compare_maps(u32::MAX, SHOWN_MAX)? } else { Vec::new() };
    if sums.packets == 0 {
        return Err(Failure::new(format!("{name}: no packet was compared ({} left out)", sums.left_out))
            .hint("a capture with Ethernet frames of 14 bytes and more is needed")
            .code(NOT_COMPARED));
    }
    conclude(args, &name, &twins, &sums, &at_end)
}

fn packets(args: &DiffArgs) -> Outcome<Packets> {
    if let Some(path) = &args.capture {
        return open(path);
    }
    let Some(netdev) = &args.interface else {
        return Err(Failure::new("name a capture file (--capture) or an interface (-i)"));
    };
    let capture = start(
        &CapturePoint::Netdev(netdev.clone()),
        Options { filter: FilterOptions::default(), ..Options::default() },
    )?;
    Source::new(Box::new(capture) as Box<dyn Read + Send>).map_err(|error| Failure::new(error.to_string()))
}

/// What differs for one packet, as JSON.
fn of_packet(number: u64, results: &Results, maps: &[MapDifference]) -> Option<Value> {
    let Results { kernel, machine } = results;
    let mut difference = json!({ "packet": number });
    if let Some(fault) = &machine.fault {
        difference["fault"] = json!(fault);
    }
    if kernel.verdict != machine.verdict {
        let verdicts = [kernel.verdict, machine.verdict].map(verdict_name);
        difference["verdict"] = json!({ "kernel": verdicts[0], "machine": verdicts[1] });
    }
    if kernel.packet != machine.packet {
        let at = kernel.packet.iter().zip(&machine.packet).position(|(a, b)| a != b);
        let at = at.unwrap_or_else(|| kernel.packet.len().min(machine.packet.len()));
        difference["bytes"] = json!({
            "offset": at,
            "kernel": hex(kernel.packet.get(at..).unwrap_or_default()),
            "machine": hex(machine.packet.get(at..).unwrap_or_default()),
            "kernel_len": kernel.packet.len(),
            "machine_len": machine.packet.len(),
        });
    }
    if !maps.is_empty() {
        difference["maps"] = Value::Array(maps.iter().map(of_map).collect());
    }
    let is_same = difference.as_object().is_some_and(|difference| difference.len() == 1);
    (!is_same).then_some(difference)
}

fn of_map(difference: &MapDifference) -> Value {
    json!({
        "map": difference.map,
        "key": difference.key.as_deref().map(hex),
        "kernel": difference.kernel.as_deref().map(hex),
        "machine": difference.machine.as_deref().map(hex),
    })
}

fn hex(bytes: &[u8]) -> String {
    let shown = hex_digits(&bytes[..bytes.len().min(BYTES_SHOWN)]);
    format!("{shown}{}", if bytes.len() > BYTES_SHOWN { "..." } else { "" })
}

fn show(terminal: Terminal, difference: &Value) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let sides = |what: &str, sides: &Value| {
        terminal.line(&format!(
            "  {what}: kernel {}, machine {}",
            text(&sides["kernel"]),
            text(&sides["machine"])
        ));
    };
    terminal.line(&terminal.paint(Tone::Bad, &format!("packet {} differs", difference["packet"])));
    if let Some(fault) = difference.get("fault") {
        terminal.line(&format!("  the machine ended the program: {}", text(fault)));
    }
    if let Some(verdict) = difference.get("verdict") {
        sides("verdict", verdict);
    }
    if let Some(bytes) = difference.get("bytes") {
        let lens = format!("{} and {} bytes", bytes["kernel_len"], bytes["machine_len"]);
        terminal.line(&format!("  packet from offset {} ({lens}):", bytes["offset"]));
        terminal.line(&format!("    kernel  {}", text(&bytes["kernel"])));
        terminal.line(&format!("    machine {}", text(&bytes["machine"])));
    }
    for map in difference["maps"].as_array().into_iter().flatten() {
        show_map(terminal, map);
    }
}

fn show_map(terminal: Terminal, map: &Value) {
    let text = |value: &Value| value.as_str().map_or_else(|| "nothing".to_owned(), str::to_owned);
    let key = map["key"].as_str().map_or_else(|| "a record".to_owned(), |key| format!("key {key}"));
    terminal.line(&format!("  map {}, {key}:", text(&map["map"])));
    terminal.line(&format!("    kernel  {}", text(&map["kernel"])));
    terminal.line(&format!("    machine {}", text(&map["machine"])));
}

fn conclude(args: &DiffArgs, name: &str, twins: &Twins, sums: &Sums, at_end: &[MapDifference]) -> Outcome {
    let is_same = sums.differing == 0 && at_end.is_empty();
    let not_compared = twins.not_compared();
    if args.json {
        let skipped: Vec<_> =
            not_compared.iter().map(|(map, why)| json!({ "map": map, "why": why })).collect();
        let report = json!({
            "program": name,
            "same": is_same,
            "packets": sums.packets,
            "differing": sums.differing,
            "left_out": sums.left_out,
            "verdicts": sums.verdicts,
            "differences": sums.shown,
            "maps_at_end": at_end.iter().map(of_map).collect::<Vec<_>>(),
            "maps_not_compared": skipped,
            "receive_hints": !twins.lacks_hints,
        });
        terminal::json(&report);
    } else {
        let terminal = Terminal::stdout();
        at_end.iter().for_each(|difference| show_map(terminal, &of_map(difference)));
        let verdicts: Vec<String> =
            sums.verdicts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        terminal.line(&format!(
            "{name}: {} packets in kernel and machine: {}",
            sums.packets,
            verdicts.join(", ")
        ));
        if sums.left_out > 0 {
            terminal.line(&format!(
                "{} packets left out: the kernel's test run does not take them",
                sums.left_out
            ));
        }
        if twins.lacks_hints {
            terminal.line(NO_HINTS);
        }
        for (map, why) in &not_compared {
            terminal.line(&format!("map {map} was not compared: {why}"));
        }
        let said = if is_same { "same verdicts, bytes and maps" } else { "they differ" };
        terminal.line(&terminal.paint(if is_same { Tone::Good } else { Tone::Bad }, said));
    }
    if is_same {
        return Ok(());
    }
    let failure = match sums.differing {
        0 => Failure::new(format!("{name}: the maps differ at the end")),
        count => Failure::new(format!("{name}: {count} packets differ")),
    };
    Err(failure.hint("programs that read the clock or random numbers differ in each run"))
}
