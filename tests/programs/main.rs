//! Unmodified Debian programs on the device: `roxie run -- PROGRAM`, two processes at every kind of place.
//!
//! `--full` runs every variant at every place. Without it two variants run everywhere, the other core
//! variants at a third of the places, and the rest at two places or one. A case runs once, some beside
//! another. Cases that cannot run here are named at the end: `skipped: needs X`. `--minutes=N` sets the
//! duration of the churn in `churn.rs`, instead of five seconds.
#![forbid(unsafe_code)]

mod addresses;
mod bundled;
mod capture;
mod case;
mod chaos;
mod churn;
mod cli;
mod containers;
mod cycles;
mod debuggers;
mod devices;
mod ends;
mod engines;
mod follow;
mod holdings;
mod hooks;
mod interfaces;
mod kill;
mod lab;
mod limits;
mod mckey;
mod misuse;
mod one_file;
mod perftest;
mod pingpong;
mod raw;
mod reasons;
mod recorded;
mod rping;
mod rsocket;
mod several;
mod strangers;
mod tools;
mod top;
mod trace;
mod ucmatose;
mod ucx;
mod udaddy;
mod xsk;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use roxie_tests::harness::is_full;
use roxie_tests::suite;

use case::{Case, Scale};

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    let scale = if is_full(&mut words) { Scale::Full } else { Scale::Quick };
    let minutes = words.iter().find_map(|word| word.strip_prefix("--minutes=")?.parse().ok());
    words.retain(|word| !word.starts_with("--minutes="));
    suite::run("programs", Arguments::from_iter(words), cases(scale, minutes))
}

fn cases(scale: Scale, minutes: Option<f64>) -> Vec<Case> {
    let beside = [
        devices::cases(),
        tools::cases(),
        bundled::cases(),
        reasons::cases(),
        limits::cases(),
        misuse::cases(scale),
        one_file::cases(),
        strangers::cases(),
        debuggers::cases(),
        addresses::cases(),
        containers::cases(),
        interfaces::cases(),
        follow::cases(),
        ends::cases(),
        several::cases(),
        mckey::cases(scale),
        ucmatose::cases(scale),
        udaddy::cases(scale),
        rping::cases(scale),
        cli::cases(),
        lab::cases(),
        cycles::cases(scale),
        capture::cases(),
        top::cases(),
        trace::cases(),
        recorded::cases(),
        xsk::cases(),
        hooks::cases(scale),
    ];
    let mut cases: Vec<_> = beside.into_iter().flatten().map(Case::beside_others).collect();
    cases.extend(cli::timed(scale));
    cases.extend(follow::streams());
    cases.extend(pingpong::cases(scale));
    cases.extend(ucx::cases(scale));
    cases.extend(rsocket::cases(scale));
    cases.extend(perftest::cases(scale));
    cases.extend(raw::cases());
    cases.extend(churn::cases(scale, minutes));
    cases.extend(tools::object_cases());
    cases.extend(kill::cases(scale));
    cases.extend(kill::timed(scale));
    cases.extend(engines::cases());
    cases.extend(xsk::busy_cases());
    cases.extend(chaos::cases(scale == Scale::Full));
    cases
}
