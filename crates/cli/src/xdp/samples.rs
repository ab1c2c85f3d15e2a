//! `roxie xdp samples`: what the recipe `sample` copies, as lines or as a capture file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{SystemTime, UNIX_EPOCH};

use bpf::MapKind;
use bpf::recipe::{SAMPLE_STATE, SAMPLES, SampleHeader};
use roxie::sys::bpf::{Map, Program, RingReader};
use roxie::sys::{PollFd, now_ns, poll};

use super::args::SamplesArgs;
use super::{interface, stats};
use crate::failure::{During, Failure, Outcome};
use crate::terminal;

/// How long one wait for a sample takes at most.
const WAIT_NS: u64 = 200_000_000;
/// File format of libpcap with nanoseconds: magic, version 2.4, two unused words, longest record, Ethernet.
const PCAP_HEADER: [u32; 6] = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 1 << 16, 1];

/// Reads until there are as many as wanted.
pub(super) fn samples(args: &SamplesArgs) -> Outcome {
    let link = interface(&args.netdev)?;
    let there = link.xdp.first().ok_or_else(|| no_samples(&link.name))?;
    let program = Program::by_id(there.program_id).during("program (needs root)")?;
    let maps = program.map_ids().during("program")?.into_iter().map(Map::by_id);
    let maps: Vec<Map> = maps.collect::<io::Result<_>>().during("maps")?;
    let named = |name: &str, kind: MapKind| {
        maps.iter().find(|map| map.kind() == kind && map.name().is_ok_and(|known| known == name))
    };
    let ring = named(SAMPLES, MapKind::Ringbuf).ok_or_else(|| no_samples(&link.name))?;
    let mut reader = RingReader::new(ring).during("ring buffer")?;
    let mut out = Output::open(args)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let offset = realtime_offset();
        let mut failed = Ok(());
        let read = reader.read(usize::try_from(left).unwrap_or(usize::MAX), |record| {
            left -= 1;
            if failed.is_ok() {
                failed = SampleHeader::parse(record)
                    .map_or(Ok(()), |(header, bytes)| out.put(&header, bytes, offset));
            }
        });
        failed.and_then(|()| out.flush()).during("writing samples")?;
        if read == 0 && left > 0 {
            poll(&mut [PollFd::readable(reader.as_fd().as_raw_fd())], Some(WAIT_NS)).during("poll")?;
        }
    }
    if let Some(state) = named(SAMPLE_STATE, MapKind::PercpuArray) {
        let lost = stats::pair(state, 0)?.bytes;
        if lost > 0 {
            eprintln!(
                "roxie: warning: {lost} samples were lost since the program was attached: nobody read fast enough"
            );
        }
    }
    Ok(())
}

fn no_samples(netdev: &str) -> Failure {
    Failure::new(format!("{netdev}: no program that samples"))
        .hint(format!("roxie xdp attach {netdev} --recipe sample"))
}

/// What to add to CLOCK_MONOTONIC for the time of day.
fn realtime_offset() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    now.saturating_sub(now_ns())
}

enum Output {
    Lines,
    Capture(Box<dyn Write>),
}

impl Output {
    fn open(args: &SamplesArgs) -> Outcome<Output> {
        let Some(path) = &args.write else { return Ok(Output::Lines) };
        let mut file: Box<dyn Write> = if path.as_os_str() == "-" {
            Box::new(io::stdout().lock())
        } else {
            Box::new(BufWriter::new(File::create(path).during(&path.display().to_string())?))
        };
        file.write_all(&PCAP_HEADER.map(u32::to_ne_bytes).concat()).during("writing samples")?;
        Ok(Output::Capture(file))
    }

    fn put(&mut self, header: &SampleHeader, bytes: &[u8], offset_ns: u64) -> io::Result<()> {
        let time_ns = header.time_ns + offset_ns;
        match self {
            Output::Lines => {
                let start: Vec<String> = bytes.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
                terminal::print(&format!(
                    "{:>10}.{:09} {} bytes, queue {}, packet {} of its CPU: {}",
                    time_ns / 1_000_000_000,
                    time_ns % 1_000_000_000,
                    header.len,
                    header.rx_queue,
                    header.sequence,
                    start.concat()
                ));
                Ok(())
            }
            Output::Capture(file) => {
                let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
                let record = [seconds as u32, rest as u32, header.captured, header.len];
                file.write_all(&record.map(u32::to_ne_bytes).concat())?;
                file.write_all(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Lines => Ok(()),
            Output::Capture(file) => file.flush(),
        }
    }
}
