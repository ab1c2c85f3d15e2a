//! The resources of a process: memory, descriptors, threads, and the names in its namespace.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use roxie_tests::process::{Running, eventually};

use crate::case::SHORT;

/// Growth that is not a leak, because of the allocator's arenas, in KiB.
const GROWTH_MAX_KIB: u64 = 512;
/// Memory that a connection makes resident in the tables that queue pair numbers index: these numbers are
/// random, so each connection touches another page of each of two tables.
const TABLE_KIB_PER_CONNECTION: u64 = 8;
/// All pages of these tables.
const TABLES_KIB: u64 = 1536;
/// Two equal measurements with this interval mean that nothing changes any more.
const CALM: Duration = Duration::from_millis(300);

/// The resources of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Holdings {
    rss_kib: u64,
    descriptors: usize,
    threads: u64,
    names: usize,
}

impl Holdings {
    pub(crate) fn of(process: &Running) -> Option<Self> {
        let pid = process.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            rss_kib: field("VmRSS:")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count(),
            threads: field("Threads:")?,
            names: process.net("unix").lines().filter(|line| line.contains("@roxie/")).count(),
        })
    }

    /// Whether more than memory has grown, or memory by more than its bound; `known_kib` is growth that is
    /// known: tables that fill, a leak of the program itself.
    pub(crate) fn has_grown_from(self, before: Self, known_kib: u64) -> bool {
        self.descriptors > before.descriptors
            || self.threads > before.threads
            || self.names > before.names
            || self.rss_kib > before.rss_kib + GROWTH_MAX_KIB + known_kib
    }
}

/// The growth of the tables that queue pair numbers index, after a number of connections.
pub(crate) fn tables_kib(connections: usize) -> u64 {
    (connections as u64 * TABLE_KIB_PER_CONNECTION).min(TABLES_KIB)
}

/// Measures once nothing changes any more.
pub(crate) fn settled<'a>(look: &dyn Fn() -> Result<Holdings, &'a str>) -> Result<Holdings, String> {
    let mut last = look()?;
    eventually(SHORT, || {
        sleep(CALM);
        look().is_ok_and(|now| std::mem::replace(&mut last, now) == now)
    });
    Ok(last)
}
