//! `roxie xdp samples`: prints records of the program on an interface, or writes its samples to a capture
//! file.

use std::os::fd::{AsFd, AsRawFd};

use bpf::MapKind;
use bpf::recipe::SAMPLE_STATE;
use roxie_capture::live::realtime_offset;
use sys::bpf::{PerfReader, RingReader};
use sys::{PollFd, poll};

use super::args::SamplesArgs;
use super::{interface, map, stats};
use crate::bpf_data::{Content, Kernel, RecordOutput, Table};
use crate::failure::{During, Failure, Outcome};

/// Longest wait for a record.
const WAIT_NS: u64 = 200_000_000;

/// One map with records.
enum Reader {
    Ring(RingReader),
    Perf(PerfReader),
}

impl Reader {
    fn open(table: &Kernel) -> Outcome<Reader> {
        let name = &table.view().def.name;
        match table.view().def.kind {
            MapKind::Ringbuf => RingReader::new(&table.map).map(Reader::Ring),
            _ => PerfReader::new(&table.map).map(Reader::Perf),
        }
        .during(name)
    }

    fn fds(&self) -> Vec<PollFd> {
        match self {
            Reader::Ring(ring) => vec![PollFd::readable(ring.as_fd().as_raw_fd())],
            Reader::Perf(perf) => perf.fds().map(|fd| PollFd::readable(fd.as_raw_fd())).collect(),
        }
    }

    fn read(&mut self, limit: usize, take: impl FnMut(&[u8])) -> usize {
        match self {
            Reader::Ring(ring) => ring.read(limit, take),
            Reader::Perf(perf) => perf.read(limit, take),
        }
    }
}

/// Reads until enough records have arrived.
pub(super) fn samples(args: &SamplesArgs) -> Outcome {
    let netdev = &args.netdev;
    if interface(netdev)?.xdp.is_empty() {
        return Err(no_samples(netdev));
    }
    let (tables, types) = map::of_program(netdev)?;
    let mut readers = Vec::new();
    for table in &tables {
        let def = &table.view().def;
        let is_ring = matches!(def.kind, MapKind::Ringbuf | MapKind::PerfEventArray);
        if is_ring && args.records.map.as_ref().is_none_or(|name| table.is_called(name)) {
            let content = Content::of(&def.name, types.as_ref(), args.records.type_name.as_deref())?;
            readers.push((Reader::open(table)?, content, def.name.clone()));
        }
    }
    if readers.is_empty() {
        return Err(no_samples(netdev));
    }
    let mut out = RecordOutput::open(args.records.write.as_deref(), args.records.json)?;
    let mut left = args.records.count.unwrap_or(u64::MAX);
    while left > 0 {
        let (offset, mut any) = (realtime_offset(), false);
        for (reader, content, name) in &mut readers {
            let mut failed = Ok(());
            let limit = usize::try_from(left).unwrap_or(usize::MAX);
            let read = reader.read(limit, |record| {
                if failed.is_ok() {
                    failed = out.put(content, name, record, offset);
                }
            });
            (any, left) = (any || read > 0, left - read as u64);
            failed.and_then(|()| out.flush())?;
        }
        if !any && left > 0 {
            let mut fds: Vec<PollFd> = readers.iter().flat_map(|(reader, ..)| reader.fds()).collect();
            poll(&mut fds, Some(WAIT_NS)).during("poll")?;
        }
    }
    let mut lost: u64 = readers
        .iter()
        .map(|(reader, ..)| if let Reader::Perf(perf) = reader { perf.lost() } else { 0 })
        .sum();
    let state = tables
        .iter()
        .find(|table| table.view().def.name == SAMPLE_STATE && table.view().def.kind == MapKind::PercpuArray);
    if let Some(state) = state {
        lost += stats::pair(&state.map, 0)?.bytes;
    }
    if lost > 0 {
        say!("roxie: warning: {lost} samples were lost since the program was attached: the ring was full");
    }
    Ok(())
}

fn no_samples(netdev: &str) -> Failure {
    Failure::new(format!("{netdev}: no program that samples"))
        .hint(format!("roxie xdp attach {netdev} --recipe sample"))
}
