//! `roxie run --chaos`: it breaks programs that rely on more than a NIC must do, and no others; and the
//! litmus tests of what a NIC may reorder. The programs are in tests/chaos.

use std::collections::BTreeMap;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;

use crate::case::{Built, Case, build, good, roxie, says, until_listening};

/// A program with an assumption that no specification gives.
#[derive(Clone, Copy)]
struct Planted {
    program: &'static str,
    /// The plan with which it fails.
    plan: &'static str,
    /// At least so many of so many runs fail. One of one: the plan alone decides.
    fails: (u32, u32),
}

const PLANTED: [Planted; 9] = [
    Planted { program: "last_byte", plan: "seed=2", fails: (1, 1) },
    Planted { program: "reuse", plan: "seed=1", fails: (1, 1) },
    Planted { program: "cq_order", plan: "seed=3", fails: (1, 1) },
    Planted { program: "arm_after_poll", plan: "seed=3", fails: (1, 1) },
    Planted { program: "rnr_retry", plan: "seed=6", fails: (1, 1) },
    Planted { program: "acknowledged", plan: "seed=1", fails: (1, 1) },
    Planted { program: "flag", plan: "seed=1", fails: (1, 1) },
    // Two threads race: the bytes are out of order for microseconds, until the message is complete.
    Planted { program: "early_receive", plan: "seed=23,faults=placement+windows", fails: (3, 20) },
    Planted { program: "one_event", plan: "seed=1", fails: (1, 1) },
];
/// A correct program passes with so many seeds. More of them: `--full`.
const CORRECT_SEEDS: u64 = 20;
/// Every allowed outcome of the litmus tests is seen with so many seeds.
const LITMUS_SEEDS: u64 = 40;
/// Exit code of a search that found a seed.
const FOUND: i32 = 67;

pub(crate) fn cases(is_full: bool) -> Vec<Case> {
    let place = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    let correct_seeds = if is_full { 1000 } else { CORRECT_SEEDS };
    let mut cases: Vec<Case> = PLANTED
        .into_iter()
        .map(|planted| {
            let what = format!("chaos breaks {} until it is fixed", planted.program);
            Case::new(place, &what, "cc", move |lab, name| breaks(lab, &place, name, planted, correct_seeds))
        })
        .collect();
    cases.push(Case::new(
        place,
        "chaos shows what the model allows and nothing else",
        "cc",
        move |lab, name| litmus(lab, &place, name),
    ));
    let case = |what, program, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        Case::new(place, what, program, move |lab, name| run(lab, &place, name)).beside_others()
    };
    cases.extend([
        case("a search finds the seed and the fewest faults", "cc", search),
        case("roxie check --seeds finds what chaos shows", "cc", checked),
        case("rping survives chaos", "rping", survives),
    ]);
    cases
}

/// Compiles a program of tests/chaos.
fn chaos_program(lab: &Lab, program: &str, options: &[&str]) -> Result<Built, String> {
    build(lab, &format!("../chaos/{program}.c"), &[options, &["-O2", "-libverbs"]].concat())
}

/// `roxie run OPTIONS -- COMMAND`.
fn run(lab: &Lab, place: &Place, name: &str, options: &[&str], command: &[&str]) -> Result<Ended, String> {
    let words = [&["run", "--netdev", lab.netdev(place)][..], options, &["--"], command].concat();
    roxie(lab, place, Side::Server, name, &words)
}

fn with_seed(lab: &Lab, place: &Place, name: &str, seed: u64, command: &[&str]) -> Result<Ended, String> {
    run(lab, place, name, &["--chaos", &format!("seed={seed}")], command)
}

fn breaks(lab: &Lab, place: &Place, name: &str, planted: Planted, correct_seeds: u64) -> Result<(), String> {
    let Planted { program, plan, fails: (fewest, runs) } = planted;
    let (planted, fixed) = (chaos_program(lab, program, &[])?, chaos_program(lab, program, &["-DFIXED"])?);
    good(run(lab, place, name, &[], &[planted.path()])?)?;
    let mut failed = 0;
    for _ in 0..runs {
        failed += u32::from(!run(lab, place, name, &["--chaos", plan], &[planted.path()])?.succeeded());
    }
    if failed < fewest {
        return Err(format!("with {plan}, {failed} of {runs} runs of {program} fail, not {fewest}"));
    }
    for seed in 1..=correct_seeds {
        says(
            &good(with_seed(lab, place, name, seed, &[fixed.path()])?)?,
            &format!("roxie: chaos seed={seed},"),
        )?;
    }
    Ok(())
}

fn litmus(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = chaos_program(lab, "litmus", &[])?;
    let mut seen: BTreeMap<(String, bool), u64> = BTreeMap::new();
    for seed in 1..=LITMUS_SEEDS {
        let ended = good(with_seed(lab, place, name, seed, &[program.path(), "10"])?)?;
        for line in ended.output.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [test, verdict @ ("allowed" | "forbidden"), count] = words[..] else { continue };
            let count: u64 = count.parse().map_err(|_| line.to_owned())?;
            if verdict == "forbidden" && count > 0 {
                return Err(format!("seed {seed}: the forbidden outcome of {test} was seen {count} times"));
            }
            *seen.entry((test.to_owned(), verdict == "allowed")).or_default() += count;
        }
    }
    let missing: Vec<&str> = seen
        .iter()
        .filter(|((_, allowed), count)| *allowed && **count == 0)
        .map(|((t, _), _)| &**t)
        .collect();
    if seen.len() < 25 || !missing.is_empty() {
        return Err(format!("{} tests; allowed outcomes that were not seen: {missing:?}", seen.len()));
    }
    Ok(())
}

/// A refused receive is found, whatever the threads do: the search, its smallest plan and the replay are the
/// same in each run.
fn search(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (planted, fixed) =
        (chaos_program(lab, "rnr_retry", &[])?, chaos_program(lab, "rnr_retry", &["-DFIXED"])?);
    let options = ["--chaos", "seeds=1..100", "--timeout", "3"];
    let ended = run(lab, place, name, &options, &[planted.path()])?;
    if ended.code() != Some(FOUND) {
        return Err(ended.describe());
    }
    says(&ended, "fewest faults: rnr (of ")?;
    let replay = ended.output.lines().find_map(|line| line.strip_prefix("replay: "));
    let words = replay.map(|line| line.split(' ').skip(1).collect::<Vec<_>>()).unwrap_or_default();
    let replayed = roxie(lab, place, Side::Server, name, &words)?;
    if replayed.succeeded() {
        return Err(format!("the replay passes\n{}\n{}", replayed.describe(), ended.describe()));
    }
    let options = ["--chaos", "seeds=1..5"];
    says(&good(run(lab, place, name, &options, &[fixed.path()])?)?, "5 seeds passed")?;
    let wrong = run(lab, place, name, &["--chaos", "seed=1,faults=x"], &[fixed.path()])?;
    says(&wrong, "faults= names an unknown fault; there are placement")?;
    let variable = run(lab, place, name, &[], &["env", "ROXIE_CHAOS=seed=x", fixed.path()])?;
    says(&variable, "ROXIE_CHAOS: the value of seed= is not a number")
}

/// `roxie check --seeds`: a finding ends the search; leaks, which are there without faults, are suppressed.
fn checked(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (planted, fixed) =
        (chaos_program(lab, "rnr_retry", &["-g"])?, chaos_program(lab, "rnr_retry", &["-g", "-DFIXED"])?);
    let file = format!("{}.suppress", planted.path());
    std::fs::write(&file, "leaked-*\n").map_err(|error| error.to_string())?;
    let check = |seeds: &str, program: &str| {
        let words = ["check", "--seeds", seeds, "--suppress", &file, "--netdev", lab.netdev(place)];
        roxie(lab, place, Side::Server, name, &[&words[..], &["--", program]].concat())
    };
    let ended = check("100", planted.path())?;
    if ended.code() != Some(FOUND) {
        return Err(ended.describe());
    }
    for expected in ["roxie check: receiver-not-ready: ", "fewest faults: rnr (of ", " check --chaos seed="] {
        says(&ended, expected)?;
    }
    says(&good(check("3", fixed.path())?)?, "3 seeds passed")
}

fn survives(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port();
    let server = format!("rping -s -a 127.0.0.1 -p {port} -C 10 -V & server=$!; {}; ", until_listening(port));
    let client = format!("rping -c -a 127.0.0.1 -p {port} -C 10 -V && wait $server");
    for seed in 1..=5 {
        good(with_seed(lab, place, name, seed, &["sh", "-c", &format!("{server}{client}")])?)?;
    }
    Ok(())
}
