//! `roxie xdp samples`: prints the samples of the recipe `sample`, or writes them to a capture file.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use bpf::MapKind;
use bpf::recipe::{SAMPLE_STATE, SAMPLES, SampleHeader};
use roxie_capture::live::realtime_offset;
use sys::bpf::{Map, Program, RingReader};
use sys::{PollFd, poll};

use super::args::SamplesArgs;
use super::{interface, stats};
use crate::failure::{During, Failure, Outcome};
use crate::frames::FrameOutput;

/// Longest wait for a sample.
const WAIT_NS: u64 = 200_000_000;

/// Reads until enough samples have arrived.
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
    let mut out = FrameOutput::open(args.write.as_deref())?;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let offset = realtime_offset();
        let mut failed = Ok(());
        let read = reader.read(usize::try_from(left).unwrap_or(usize::MAX), |record| {
            left -= 1;
            if failed.is_ok() {
                failed = SampleHeader::parse(record).map_or(Ok(()), |(header, bytes)| {
                    let SampleHeader { time_ns, len, rx_queue, sequence, .. } = header;
                    let place = format!("queue {rx_queue}, packet {sequence} of its CPU");
                    out.put(time_ns + offset, len, &place, bytes)
                });
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
                "roxie: warning: {lost} samples were lost since the program was attached: they were not \
                 read fast enough"
            );
        }
    }
    Ok(())
}

fn no_samples(netdev: &str) -> Failure {
    Failure::new(format!("{netdev}: no program that samples"))
        .hint(format!("roxie xdp attach {netdev} --recipe sample"))
}
