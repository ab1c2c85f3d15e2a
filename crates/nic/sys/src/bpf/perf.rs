//! Reading records that programs have written to a perf event array (perf_event_open(2)).
//!
//! Each CPU has its own ring. The kernel counts what does not fit, and says so in a record of its own.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use ::bpf::MapKind;

use super::Map;
use crate::perf_event::{self, EventAttr, RECORD_SAMPLE, Ring};

/// The reading end of a perf event array: one ring for each CPU. Records are read as long as it lives; a map
/// has one reader for each CPU, the last one.
#[derive(Debug)]
pub struct PerfReader {
    rings: Vec<Ring>,
    lost: u64,
}

// `linux/perf_event.h`.
const TYPE_SOFTWARE: u32 = 1;
const COUNT_SW_BPF_OUTPUT: u64 = 10;
const SAMPLE_RAW: u64 = 1 << 10;
const RECORD_LOST: u32 = 2;
/// Pages of the storage of one CPU, a power of two: 256 KiB.
const PAGES: usize = 64;

impl PerfReader {
    /// Opens a ring for each CPU that is online, and enters it into the map.
    ///
    /// # Errors
    /// `EINVAL` if the map is no perf event array; `EPERM` or `EACCES` without CAP_PERFMON.
    pub fn new(map: &Map) -> io::Result<PerfReader> {
        if map.kind() != MapKind::PerfEventArray {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut rings = Vec::new();
        for cpu in 0..map.max_entries()? {
            let event = match open(cpu) {
                Ok(event) => event,
                // The CPU is not online.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                // There are fewer CPUs than entries.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !rings.is_empty() => break,
                Err(error) => return Err(error),
            };
            let ring = Ring::new(event, PAGES)?;
            map.update(&cpu.to_ne_bytes(), &ring.as_fd().as_raw_fd().to_ne_bytes())?;
            rings.push(ring);
        }
        Ok(PerfReader { rings, lost: 0 })
    }

    /// The descriptors to wait for.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(Ring::as_fd)
    }

    /// Records that did not fit so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Hands records to `take`, at most `limit`; those of one CPU in order. Returns how many.
    pub fn read(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut records = 0;
        for ring in &self.rings {
            while records < limit {
                match ring.next() {
                    None => break,
                    Some((RECORD_SAMPLE, bytes)) => {
                        // A 32-bit length, then the data with padding.
                        let Some((len, rest)) = bytes.split_first_chunk::<4>() else { continue };
                        take(&rest[..rest.len().min(u32::from_ne_bytes(*len) as usize)]);
                        records += 1;
                    }
                    Some((RECORD_LOST, bytes)) => {
                        // An id, then the number.
                        let count = bytes.get(8..16).and_then(|count| count.first_chunk());
                        self.lost += count.map_or(0, |count| u64::from_ne_bytes(*count));
                    }
                    Some(_) => {}
                }
            }
        }
        records
    }
}

fn open(cpu: u32) -> io::Result<OwnedFd> {
    let attr = EventAttr {
        kind: TYPE_SOFTWARE,
        config: COUNT_SW_BPF_OUTPUT,
        sample_period: 1,
        sample_type: SAMPLE_RAW,
        wakeup_events: 1,
        ..EventAttr::default()
    };
    perf_event::open(attr, -1, cpu as libc::c_int)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use ::bpf::{Asm, Helper, MapDef, Reg, Size, XdpAction};

    use super::*;
    use crate::bpf::{Program, TestRun};
    use crate::testing::stay_on_this_cpu;

    #[test]
    fn records_of_every_cpu_are_read_complete_and_lost_ones_are_counted() {
        let mut asm = Asm::new("event");
        let events = asm.map(MapDef::new("events", MapKind::PerfEventArray, 4, 4, 0));
        asm.load_map(Reg::R2, events).mov(Reg::R3, -1).store(Size::Dw, Reg::R10, -8, 0x0102_0304);
        // BPF_F_CURRENT_CPU.
        asm.alu32(::bpf::AluOp::Mov, Reg::R3, -1).mov(Reg::R4, Reg::R10).add(Reg::R4, -8).mov(Reg::R5, 8);
        asm.call(Helper::PerfEventOutput).ret(XdpAction::Pass);
        let (program, maps) = match Program::load_with_maps(&asm.finish().unwrap()) {
            Err(error) if error.error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: needs root");
                return;
            }
            loaded => loaded.unwrap(),
        };
        let mut reader = PerfReader::new(&maps[0]).unwrap();
        let run = |repeat| {
            program.test_run(&TestRun { packet: &[0; 60], repeat, ..TestRun::default() }).unwrap();
        };
        run(3);
        let mut seen = Vec::new();
        assert_eq!(reader.read(2, |record| seen.push(record[..8].to_vec())), 2);
        assert_eq!(reader.read(usize::MAX, |record| seen.push(record[..8].to_vec())), 1);
        assert_eq!(seen, vec![vec![4, 3, 2, 1, 0, 0, 0, 0]; 3]);
        // More than the storage of one CPU. The next record of that CPU says that others were lost.
        stay_on_this_cpu();
        run(100_000);
        let kept = reader.read(usize::MAX, |_| {});
        run(1);
        reader.read(usize::MAX, |_| {});
        assert!(kept > 1000 && kept < 100_000 && reader.lost() > 0, "{kept} {}", reader.lost());
    }
}
