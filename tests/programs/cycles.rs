//! Connections come and go: a server that served many holds no more memory, descriptors or names than before.

use std::fs;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Running, eventually};

use crate::case::{Case, SHORT, Scale};

/// Connections before the first look: caches and stacks are in place by then.
const WARM_UP: usize = 10;
/// Growth that is not a leak: the allocator's arenas, in KiB.
const GROWTH_MAX_KIB: u64 = 512;

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let rounds = if scale == Scale::Full { 1000 } else { 100 };
    [(Topology::TwoHosts, User::Root), (Topology::Loopback, User::Ordinary)]
        .into_iter()
        .map(|(topology, user)| {
            let place = Place::new(topology, Family::V4, user);
            let what = format!("{rounds} connects and disconnects leave nothing behind");
            Case::new(place, &what, "rping", move |lab, name| cycle(lab, &place, name, rounds))
        })
        .collect()
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Holdings {
    rss_kib: u64,
    descriptors: usize,
    threads: u64,
    names: usize,
}

impl Holdings {
    fn of(process: &Running) -> Option<Self> {
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

    /// Nothing but memory within bounds differs.
    fn has_grown_from(self, before: Self) -> bool {
        self.descriptors > before.descriptors
            || self.threads > before.threads
            || self.names > before.names
            || self.rss_kib > before.rss_kib + GROWTH_MAX_KIB
    }
}

fn cycle(lab: &Lab, place: &Place, name: &str, rounds: usize) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let mut server =
        start(lab, place, Side::Server, name, &["rping", "-s", "-P", "-a", address, "-p", &port_word])?;
    wait_ready(&mut server, Ready::Cm(port))?;
    let words = ["rping", "-c", "-V", "-C", "2", "-a", address, "-p", &port_word];
    let mut connect = |n: usize| -> Result<(), String> {
        let ended = start(lab, place, Side::Client, name, &words)?.wait(SHORT);
        if ended.succeeded() { Ok(()) } else { Err(format!("connection {n}\n{}", ended.describe())) }
    };
    (0..WARM_UP).try_for_each(&mut connect)?;
    let look = || Holdings::of(&server).ok_or("the server is gone");
    let before = settled(&look)?;
    (WARM_UP..WARM_UP + rounds).try_for_each(&mut connect)?;
    let mut after = before;
    // The last connection is torn down a moment after its client ended.
    let back = eventually(SHORT, || match look() {
        Ok(now) => {
            after = now;
            !now.has_grown_from(before)
        }
        Err(_) => true,
    });
    look()?;
    if back { Ok(()) } else { Err(format!("before: {before:?}\nafter {rounds} connections: {after:?}")) }
}

/// Holdings once the server has let go of the warm-up's last connection.
fn settled<'a>(look: &dyn Fn() -> Result<Holdings, &'a str>) -> Result<Holdings, String> {
    let mut last = look()?;
    eventually(SHORT, || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        look().is_ok_and(|now| std::mem::replace(&mut last, now) == now)
    });
    Ok(last)
}
