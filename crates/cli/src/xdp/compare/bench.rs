//! `roxie xdp bench`: nanoseconds per packet in the kernel and in roxie's machine.

use serde_json::{Value, json};

use super::super::args::BenchArgs;
use super::super::source;
use super::{NO_HINTS, NOT_COMPARED, Twins, verdict_name};
use crate::capture::open;
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Terminal};

/// Packets of a capture that are measured.
const PACKETS_MAX: usize = 16;
/// Repetitions of each measurement, of which the fastest counts: others were interrupted.
const ROUNDS: usize = 5;

/// One program.
struct Measured {
    name: String,
    slots: usize,
    verdict: u32,
    kernel_ns: f64,
    run_ns: f64,
    replay_ns: f64,
}

/// Measures and prints.
pub(crate) fn bench(args: &BenchArgs) -> Outcome {
    let programs = source::load_all(&args.source)?;
    let packets = packets(args)?;
    let [here, _] = cpu::pair();
    cpu::stay_on(here);
    let terminal = Terminal::stdout();
    if !args.json {
        let head = format!(
            "{:<18} {:>6} {:<12} {:>10} {:>10} {:>10}",
            "PROGRAM", "INSNS", "VERDICT", "KERNEL", "MACHINE", "REPLAYED"
        );
        terminal.heading(&head);
    }
    let mut rows = Vec::new();
    let (mut refused, mut lacks_hints) = (0, false);
    for program in programs {
        let name = program.name.clone();
        lacks_hints |= program.is_device_bound();
        match measure(args, program, &packets) {
            Ok(measured) => {
                if !args.json {
                    terminal.line(&measured.line());
                }
                rows.push(measured.json());
            }
            Err(failure) => {
                refused += 1;
                let why = failure.what.lines().next().unwrap_or_default().to_owned();
                if args.json {
                    rows.push(json!({ "program": name, "error": failure.what }));
                } else {
                    terminal.line(&format!("{name:<18} {why}"));
                }
            }
        }
    }
    if args.json {
        let report =
            json!({ "packets": packets.len(), "repeat": args.repeat, "unit": "ns", "programs": rows });
        terminal::json(&report);
    } else {
        let plural = if packets.len() == 1 { "packet" } else { "packets" };
        let from = args.capture.as_ref().map_or_else(String::new, |path| format!(" of {}", path.display()));
        terminal.line(&format!("nanoseconds per packet: {} {plural}{from},", packets.len()));
        terminal.line(&format!("{} runs each, the fastest of {ROUNDS} rounds", args.repeat));
        if lacks_hints {
            terminal.line(NO_HINTS);
        }
    }
    match refused {
        0 => Ok(()),
        n => Err(Failure::new(format!("{n} programs did not run in both places")).code(NOT_COMPARED)),
    }
}

fn measure(args: &BenchArgs, program: bpf::Program, packets: &[Vec<u8>]) -> Outcome<Measured> {
    let (name, slots) = (program.name.clone(), program.slots.len());
    let mut twins = Twins::new(program)?;
    let mut verdict = None;
    let fastest = |times: &mut dyn FnMut() -> Outcome<f64>| -> Outcome<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            best = best.min(times()?);
        }
        Ok(best)
    };
    let (mut kernel, mut run, mut replay) = (0.0, 0.0, 0.0);
    for packet in packets {
        let results = twins.run(packet)?;
        let results =
            results.ok_or_else(|| Failure::new(format!("{name}: the kernel takes no such packet")))?;
        if let Some(fault) = results.machine.fault {
            return Err(Failure::new(format!("{name}: the machine ended the program: {fault}")));
        }
        verdict.get_or_insert(results.kernel.verdict);
        kernel += fastest(&mut || {
            let failed = |error: std::io::Error| Failure::new(format!("BPF_PROG_TEST_RUN: {error}"));
            twins.kernel_ns(packet, args.repeat).map_err(failed)
        })?;
        run += fastest(&mut || Ok(twins.machine_ns(packet, args.repeat, false)))?;
        replay += fastest(&mut || Ok(twins.machine_ns(packet, args.repeat, true)))?;
    }
    let count = packets.len() as f64;
    Ok(Measured {
        name,
        slots,
        verdict: verdict.unwrap_or_default(),
        kernel_ns: kernel / count,
        run_ns: run / count,
        replay_ns: replay / count,
    })
}

fn packets(args: &BenchArgs) -> Outcome<Vec<Vec<u8>>> {
    let Some(path) = &args.capture else { return Ok(vec![roce_packet()]) };
    let mut source = open(path)?;
    let mut packets = Vec::new();
    while let Some(record) = source.next_record().map_err(|error| Failure::new(error.to_string()))? {
        if record.decode_as.link_type == wire::capture::LinkType::ETHERNET && record.data.len() >= 14 {
            packets.push(record.data.to_vec());
        }
        if packets.len() == PACKETS_MAX {
            break;
        }
    }
    if packets.is_empty() {
        return Err(Failure::new(format!("{}: no Ethernet frames", path.display())));
    }
    Ok(packets)
}

/// A SEND Only of 64 bytes over UDP and IPv4, 10.0.0.1 to 10.0.0.2.
fn roce_packet() -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    packet.extend([0x45, 0, 0, 108, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0xc0, 1, 0x12, 0xb7, 0, 88, 0, 0]);
    packet.extend([4, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 1]);
    packet.extend([0; 64 + 4]);
    packet
}

impl Measured {
    fn line(&self) -> String {
        format!(
            "{:<18} {:>6} {:<12} {:>10.1} {:>10.1} {:>10.1}",
            self.name,
            self.slots,
            verdict_name(self.verdict),
            self.kernel_ns,
            self.run_ns,
            self.replay_ns
        )
    }

    fn json(&self) -> Value {
        json!({
            "program": self.name,
            "instructions": self.slots,
            "verdict": verdict_name(self.verdict),
            "kernel_ns": self.kernel_ns,
            "machine_ns": self.run_ns,
            "replayed_ns": self.replay_ns,
        })
    }
}
