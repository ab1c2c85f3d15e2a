//! Process churn: 50 processes on one address are started and killed at random while others exchange
//! messages. The others must lose nothing, and nothing of the killed processes may remain.
//!
//! `cargo test --release -p roxie-tests --test programs -- churn --minutes=10` is ten thousand starts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Running, eventually};

use crate::case::{Case, LONG, Scale};
use crate::holdings::{Holdings, settled, tables_kib};

/// Processes that are started and killed, and pairs that stay.
const COMING_AND_GOING: usize = 43;
const LIVING_PAIRS: usize = 3;
/// Ten thousand starts in ten minutes.
const STARTS_PER_SECOND: f64 = 17.0;
/// Pause when the schedule is late.
const PAUSE: Duration = Duration::from_millis(1);
const QUICK: Duration = Duration::from_secs(5);
const FULL: Duration = Duration::from_secs(30);
/// Starts before the first measurement: caches and stacks are allocated by then.
const WARM_UP: usize = 60;
/// Memory that each start may cost rping's server itself, without arenas and the tables of the device.
const BYTES_PER_START: u64 = 64;
/// Memory for as many threads as lived at once on a busy machine: 700 KiB were measured after 400 starts,
/// and 1.1 MiB after 5000.
const ARENAS_KIB: u64 = 512;
/// Time for surviving processes to notify the peers of the killed ones.
const AFTERMATH: Duration = Duration::from_secs(20);

pub(crate) fn cases(scale: Scale, minutes: Option<f64>) -> Vec<Case> {
    let usual = if scale == Scale::Full { FULL } else { QUICK };
    let time = minutes.map_or(usual, |minutes| Duration::from_secs_f64(60.0 * minutes));
    let place = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    vec![Case::new(place, "churn of 50 processes", "rping", move |lab, name| churn(lab, &place, name, time))]
}

/// rping's server ends, on any device, when a client dies while it connects; after this time a client has
/// connected.
const CONNECTED_AFTER: Duration = Duration::from_secs(2);

/// Numbers of started and killed processes.
#[derive(Debug, Default)]
struct Tally {
    starts: usize,
    kills: usize,
}

/// Processes that are started and killed, one per slot.
struct Crowd<'a> {
    lab: &'a Lab,
    place: &'a Place,
    name: &'a str,
    keeper: String,
    slots: Vec<Option<Guest>>,
    random: u64,
    tally: Tally,
}

/// One process.
struct Guest {
    process: Running,
    /// It is not killed before this time.
    until: Instant,
}

impl Crowd<'_> {
    /// A number below `n` (Knuth's linear congruential generator; the timing is random in any case).
    fn draw(&mut self, n: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % n
    }

    /// Kills the process in a slot, unless it is too young, and starts another one there.
    fn turn(&mut self) -> Result<(), String> {
        let slot = self.draw(self.slots.len());
        if self.slots[slot].as_ref().is_some_and(|guest| Instant::now() < guest.until) {
            return Ok(());
        }
        self.kill(slot);
        let address = self.lab.address(self.place);
        let own_port = self.lab.port().to_string();
        let (words, time): (&[&str], _) = match self.draw(4) {
            // A client of the surviving server; a server without clients; a program that only lists
            // devices.
            0 | 1 => {
                (&["rping", "-c", "-V", "-C", "1000000", "-a", address, "-p", &self.keeper], CONNECTED_AFTER)
            }
            2 => (&["rping", "-s", "-a", address, "-p", &own_port], Duration::ZERO),
            _ => (&["ibv_devinfo"], Duration::ZERO),
        };
        let name = format!("{}-{slot}", self.name);
        let process = start(self.lab, self.place, Side::Client, &name, words)?;
        self.slots[slot] = Some(Guest { process, until: Instant::now() + time });
        self.tally.starts += 1;
        Ok(())
    }

    fn kill(&mut self, slot: usize) {
        if let Some(mut guest) = self.slots[slot].take()
            && !guest.process.has_ended()
        {
            guest.process.signal(Signal::SIGKILL);
            self.tally.kills += 1;
        }
    }

    fn kill_all(&mut self) {
        thread::sleep(CONNECTED_AFTER);
        (0..self.slots.len()).for_each(|slot| self.kill(slot));
    }
}

fn churn(lab: &Lab, place: &Place, name: &str, time: Duration) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let keeper_port = port.to_string();
    let words = ["rping", "-s", "-P", "-a", address, "-p", &keeper_port];
    let mut keeper = start(lab, place, Side::Server, &format!("{name}-keeper"), &words)?;
    wait_ready(&mut keeper, Ready::Cm(port))?;
    let slots = (0..COMING_AND_GOING).map(|_| None).collect();
    let (tally, random) = (Tally::default(), u64::from(keeper.pid()));
    let mut crowd = Crowd { lab, place, name, keeper: keeper_port.clone(), slots, random, tally };
    while crowd.tally.starts < WARM_UP {
        crowd.turn()?;
        thread::sleep(Duration::from_secs_f64(1.0 / STARTS_PER_SECOND));
    }
    crowd.kill_all();
    let before = settled(&|| Holdings::of(&keeper).ok_or("the keeper has ended"))?;
    crowd.tally = Tally::default();

    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let live = |n| living(lab, place, &format!("{name}-living-{n}"), &over, &rounds);
        let living: Vec<_> = (0..LIVING_PAIRS).map(|n| scope.spawn(move || live(n))).collect();
        let begun = Instant::now();
        let mut outcome = Ok(());
        while outcome.is_ok() && begun.elapsed() < time {
            let due = Duration::from_secs_f64(crowd.tally.starts as f64 / STARTS_PER_SECOND);
            thread::sleep(due.saturating_sub(begun.elapsed()).max(PAUSE));
            outcome = crowd.turn();
        }
        over.store(true, Ordering::Relaxed);
        let lived = living.into_iter().map(|pair| pair.join().expect("no panic"));
        lived.fold(outcome, Result::and)
    })?;
    crowd.kill_all();

    // Every second process connects to the keeper.
    let growth =
        BYTES_PER_START * crowd.tally.starts as u64 / 1024 + ARENAS_KIB + tables_kib(crowd.tally.starts / 2);
    let mut after = Err("the keeper has ended".to_owned());
    let back = eventually(AFTERMATH, || {
        let now = Holdings::of(&keeper);
        after = now.ok_or_else(|| "the keeper has ended".to_owned());
        now.is_none_or(|now| !now.has_grown_from(before, growth))
    });
    let after = after.map_err(|gone| format!("{gone}\n{}", keeper.wait(Duration::ZERO).describe()))?;
    println!("{:?}, {rounds:?} rounds of living pairs\nbefore: {before:?}\nafter:  {after:?}", crowd.tally);
    // The surviving server still serves.
    let words = ["rping", "-c", "-V", "-C", "10", "-a", address, "-p", &keeper_port];
    let ended = start(lab, place, Side::Client, name, &words)?.wait(LONG);
    if !ended.succeeded() || keeper.has_ended() {
        return Err(format!("{}{}", ended.describe(), keeper.wait(Duration::ZERO).describe()));
    }
    if back { Ok(()) } else { Err(format!("before: {before:?}\nafter {:?}: {after:?}", crowd.tally)) }
}

/// Connects, exchanges messages and disconnects, repeatedly; rping checks every byte.
fn living(
    lab: &Lab,
    place: &Place,
    name: &str,
    over: &AtomicBool,
    rounds: &AtomicUsize,
) -> Result<(), String> {
    let address = lab.address(place);
    while !over.load(Ordering::Relaxed) {
        let port = lab.port();
        let port_word = port.to_string();
        let common = ["-a", address, "-p", &port_word, "-V", "-C", "300", "-S", "5000"];
        let server = [&["rping", "-s"], &common[..]].concat();
        let client = [&["rping", "-c"], &common[..]].concat();
        Pair { name, server, client, ready: Ready::Cm(port), limit: LONG }.run(lab, place)?;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
