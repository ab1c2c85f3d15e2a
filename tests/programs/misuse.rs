//! `roxie check`: the programs of `tests/misuse` make one mistake each, on a line that names the finding;
//! programs without mistakes run silently, with the exit code that they have without the check.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Built, Case, Scale, build, good, roxie, says, until_listening};

/// Commands of a server and a client; each of them is checked. `PORT` stands for a port.
const SILENT: [(&str, &str, &str); 18] = [
    ("ib_write_bw", "ib_write_bw -F -n 300 -p PORT", "127.0.0.1"),
    ("ib_read_bw", "ib_read_bw -F -n 300 -p PORT", "127.0.0.1"),
    ("ib_send_lat", "ib_send_lat -F -n 300 -p PORT", "127.0.0.1"),
    ("ib_write_lat", "ib_write_lat -F -n 300 -p PORT", "127.0.0.1"),
    ("ib_send_bw", "ib_send_bw -F -b --size=1000000 -n 100 -p PORT", "127.0.0.1"),
    ("ib_atomic_bw", "ib_atomic_bw -F -n 300 -p PORT", "127.0.0.1"),
    ("ib_write_bw", "ib_write_bw -F -c UC -n 300 -p PORT", "127.0.0.1"),
    ("ibv_rc_pingpong", "ibv_rc_pingpong -g 0 -n 300 -p PORT", "127.0.0.1"),
    ("ibv_uc_pingpong", "ibv_uc_pingpong -g 0 -n 300 -p PORT", "127.0.0.1"),
    ("ibv_rc_pingpong", "ibv_rc_pingpong -g 0 -e -n 300 -p PORT", "127.0.0.1"),
    ("ibv_xsrq_pingpong", "ibv_xsrq_pingpong -g 0 -n 50 -p PORT", "127.0.0.1"),
    ("ibv_ud_pingpong", "ibv_ud_pingpong -g 0 -n 300 -p PORT", "127.0.0.1"),
    ("ibv_srq_pingpong", "ibv_srq_pingpong -g 0 -n 300 -p PORT", "127.0.0.1"),
    ("ucx_perftest", "ucx_perftest -n 300 -p PORT", "127.0.0.1 -t tag_bw -s 4096"),
    ("ucx_perftest", "ucx_perftest -n 300 -p PORT", "127.0.0.1 -t ucp_put_lat -s 8"),
    ("rping", "rping -C 20 -a 127.0.0.1 -p PORT -s", "-c -V"),
    ("ucmatose", "ucmatose -p PORT", "-s 127.0.0.1"),
    ("rdma_server", "rdma_server -p PORT", "rdma_client -s 127.0.0.1 -p PORT"),
];

/// Options of `roxie check` with which programs without a mistake are silent. The commands of [`SILENT`] run
/// without an option, with one of these in turn, and with all of them.
const SINGLE_MODES: [&[&str]; 3] = [&["--races"], &["--pages=receives"], &["--pages=targets"]];
const ALL_AT_ONCE: [&str; 4] = ["--races", "--pages=receives,targets,shared", "--chaos", "seed=1"];
/// The same for the programs of `tests/misuse`.
const OWN_MODES: [&[&str]; 1] = [&["--pages=receives,shared"]];
/// Those of both at full scale, with the ones above.
const FULL_MODES: [&[&str]; 6] = [
    &[],
    &ALL_AT_ONCE,
    &["--pages"],
    &["--pages=receives,shared"],
    &["--pages=targets,shared"],
    &["--chaos", "seed=2"],
];

/// Those of `usual`, and at full scale those of all modes.
fn modes(scale: Scale, usual: &[&'static [&'static str]]) -> Vec<&'static [&'static str]> {
    let mut modes = usual.to_vec();
    if scale == Scale::Full {
        modes.extend(SINGLE_MODES.iter().chain(&FULL_MODES).filter(|mode| !usual.contains(mode)));
    }
    modes
}

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let place = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    let mut cases: Vec<Case> = programs()
        .into_iter()
        .map(|source| {
            let what = format!("roxie check finds {}", stem(&source));
            Case::new(place, &what, needs(&source), move |lab, name| finds(lab, &place, name, &source, false))
        })
        .collect();
    for source in programs().into_iter().filter(|source| has_correct_form(source)) {
        let what = format!("roxie check is silent: {} corrected", stem(&source));
        cases.push(Case::new(place, &what, "cc", move |lab, name| finds(lab, &place, name, &source, true)));
    }
    for source in programs().into_iter().filter(|source| is_correct(source)) {
        for mode in modes(scale, &OWN_MODES) {
            let (what, source) = (silent_name(mode, &stem(&source)), source.clone());
            cases.push(Case::new(place, &what, "cc", move |lab, name| {
                correct(lab, &place, name, mode, &source)
            }));
        }
    }
    for (nth, (program, server, client)) in SILENT.into_iter().enumerate() {
        let usual = [&[][..], SINGLE_MODES[nth % SINGLE_MODES.len()], &ALL_AT_ONCE];
        for mode in modes(scale, &usual) {
            let what = silent_name(mode, &format!("{server}, {client}"));
            cases.push(Case::new(place, &what, program, move |lab, name| {
                silent(lab, &place, name, mode, (server, client))
            }));
        }
    }
    cases.push(Case::new(place, "roxie check --races and the litmus tests", "cc", move |lab, name| {
        litmus(lab, &place, name)
    }));
    cases.push(Case::new(place, "roxie check --races of a long run", "cc", move |lab, name| {
        long_run(lab, &place, name)
    }));
    cases.push(Case::new(place, "roxie check --suppress", "cc", move |lab, name| {
        suppressed(lab, &place, name)
    }));
    cases.push(Case::new(
        place,
        "roxie check prints findings that a full disk refuses",
        "cc",
        move |lab, name| full_output(lab, &place, name),
    ));
    cases.push(Case::new(place, "roxie check keeps the exit code", "sh", move |lab, name| {
        exit_codes(lab, &place, name)
    }));
    cases.push(Case::new(place, "roxie check says what gives lines", "cc", move |lab, name| {
        without_lines(lab, &place, name)
    }));
    cases
}

/// The command runs to its end, and no finding is lost.
fn full_output(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, "../misuse/leaked_channel.c", &["-g", "-libverbs"])?;
    let script = format!("{}; echo ran to its end", program.path());
    let words = ["check", "--netdev", "lo", "--output", "/dev/full", "--", "sh", "-c", &script];
    let ended = roxie(lab, place, Side::Server, name, &words)?;
    for text in ["No space left", "leaked-channel", "ran to its end"] {
        says(&ended, text)?;
    }
    if ended.code() == Some(66) { Ok(()) } else { Err(ended.describe()) }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("misuse")
}

fn programs() -> Vec<PathBuf> {
    let listed = fs::read_dir(directory()).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sources: Vec<PathBuf> =
        listed.filter(|path| path.extension().is_some_and(|e| e == "c")).collect();
    sources.sort();
    assert!(sources.len() > 40, "the programs of tests/misuse");
    sources
}

fn stem(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The program that a case needs: the compiler, or one that does not exist if ordinary users get no debug
/// registers.
fn needs(source: &Path) -> &'static str {
    let needs_them = fs::read_to_string(source).is_ok_and(|text| text.contains("needs: debug registers"));
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let has_them = level.is_ok_and(|level| level.trim().parse::<i32>().is_ok_and(|level| level <= 2));
    if needs_them && !has_them { "perf_event_paranoid=2" } else { "cc" }
}

/// Whether it makes no mistake with -DFIXED.
fn has_correct_form(source: &Path) -> bool {
    fs::read_to_string(source).is_ok_and(|text| ["FIXED", "EITHER("].iter().any(|word| text.contains(word)))
}

/// Whether it makes no mistake as it is, or with -DFIXED.
fn is_correct(source: &Path) -> bool {
    stem(source).starts_with("correct") || has_correct_form(source)
}

fn silent_name(mode: &[&str], program: &str) -> String {
    [&["roxie check"], mode, &["is silent:", program]].concat().join(" ")
}

/// Compiles a program, also with the options that it names.
fn built(lab: &Lab, source: &Path, is_fixed: bool) -> Result<Built, String> {
    let text = fs::read_to_string(source).map_err(|error| error.to_string())?;
    let more = marks(&text, "compile:");
    let mut options = vec!["-g", "-Wall", "-libverbs", "-lrdmacm", "-lpthread"];
    options.extend(is_fixed.then_some("-DFIXED"));
    options.extend(more.iter().map(|(_, word)| word.as_str()));
    build(lab, &format!("../misuse/{}.c", stem(source)), &options)
}

/// A correct program runs silently.
fn correct(lab: &Lab, place: &Place, name: &str, mode: &[&str], source: &Path) -> Result<(), String> {
    let program = built(lab, source, true)?;
    let words = [&["check", "--quiet"], mode, &["--netdev", "lo", "--", program.path()]].concat();
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    if ended.output.contains("roxie check:") { Err(ended.describe()) } else { Ok(()) }
}

/// The words after `label` in comments, each with its line.
fn marks(text: &str, label: &str) -> Vec<(u64, String)> {
    let line = |(index, line): (usize, &str)| {
        let words = line.split_once(label)?.1.split("*/").next()?;
        Some(words.split_whitespace().map(|word| (index as u64 + 1, word.to_owned())).collect::<Vec<_>>())
    };
    text.lines().enumerate().filter_map(line).flatten().collect()
}

/// Kinds and lines of the findings are those of the marks; of the correct form there are none.
fn finds(lab: &Lab, place: &Place, name: &str, source: &Path, is_fixed: bool) -> Result<(), String> {
    let file = format!("{}.c", stem(source));
    let text = fs::read_to_string(source).map_err(|error| error.to_string())?;
    let program = built(lab, source, is_fixed)?;
    let marked = if is_fixed { Vec::new() } else { marks(&text, "finds:") };
    let expected: BTreeSet<(u64, String)> = marked.into_iter().collect();
    let options = marks(&text, "options:");
    let mut words = vec!["check", "--quiet", "--json", "--netdev", "lo"];
    words.extend(options.iter().map(|(_, word)| word.as_str()));
    words.extend(["--", program.path()]);
    let ended = roxie(lab, place, Side::Server, name, &words)?;
    let mut found = BTreeSet::new();
    for line in ended.output.lines().filter(|line| line.starts_with("{\"kind\"")) {
        let finding: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let at = &finding["place"];
        if !at["file"].as_str().is_some_and(|at| at.ends_with(&file)) {
            return Err(format!("a finding in another file: {line}\n{}", ended.describe()));
        }
        let kind = finding["kind"].as_str().unwrap_or_default().to_owned();
        found.insert((at["line"].as_u64().unwrap_or_default(), kind));
    }
    let code = match marks(&text, "exit:").pop().filter(|_| !is_fixed) {
        Some((_, code)) => code.parse().map_err(|_| format!("{code} is no exit code"))?,
        None if expected.is_empty() => 0,
        None => 66,
    };
    if found != expected || ended.code() != Some(code) {
        return Err(format!("expected {expected:?}, found {found:?}\n{}", ended.describe()));
    }
    Ok(())
}

fn silent(
    lab: &Lab,
    place: &Place,
    name: &str,
    options: &[&str],
    (server, client): (&str, &str),
) -> Result<(), String> {
    let port = lab.port();
    let server = server.replace("PORT", &port.to_string());
    let client = match client.strip_prefix("rdma_client") {
        Some(_) => client.replace("PORT", &port.to_string()),
        None => format!("{} {client}", server.replace(" -s", "")),
    };
    let script = format!("{server} & {}; {client} && wait $!", until_listening(port));
    let transport = "export UCX_TLS=rc_verbs,ud_verbs UCX_NET_DEVICES=roxie0:1;";
    let script = if server.starts_with("ucx") { format!("{transport} {script}") } else { script };
    // UCX looks for the device in files.
    let files = if server.starts_with("ucx") { "--device-files" } else { "--device-files=off" };
    let words = [files, "--netdev", "lo", "--", "sh", "-c", &script];
    let words = [&["check"], options, &words].concat();
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    let is_compared = !ended.output.contains("roxie check --races: 0 work requests");
    let says_so = !options.contains(&"--races") || ended.output.contains("work requests compared");
    match ended.output.contains("roxie check:") || !is_compared || !says_so {
        false => Ok(()),
        true => Err(ended.describe()),
    }
}

/// Races are reported of the tests in which operations of NICs are not ordered, whatever their timing is, and
/// of none in which they are.
fn litmus(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const RACES: [&str; 2] = ["read_then_write", "read_then_dependent_write"];
    const ORDERED: [&str; 6] = [
        "write_then_read",
        "overlapping_writes",
        "read_then_fenced_overwrite",
        "read_then_fenced_write",
        "two_writes",
        "lost_addition",
    ];
    let program = build(lab, "../chaos/litmus.c", &["-g", "-libverbs", "-lpthread"])?;
    let words = ["check", "--races", "--json", "--netdev", "lo", "--", program.path()];
    let ended = roxie(lab, place, Side::Server, name, &words)?;
    let mut racing = BTreeSet::new();
    for line in ended.output.lines().filter(|line| line.starts_with("{\"kind\"")) {
        let finding: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let kind = finding["kind"].as_str().unwrap_or_default();
        let is_race = ["race-", "unordered-", "missing-fence"].iter().any(|start| kind.starts_with(start));
        let frames = finding["stacks"].as_array().into_iter().flatten().flat_map(|stack| {
            stack["frames"].as_array().into_iter().flatten().filter_map(|frame| frame["function"].as_str())
        });
        racing.extend(frames.filter(|_| is_race).map(str::to_owned));
    }
    let is_as_expected =
        RACES.iter().all(|test| racing.contains(*test)) && !ORDERED.iter().any(|test| racing.contains(*test));
    if is_as_expected { Ok(()) } else { Err(format!("{racing:?}\n{}", ended.describe())) }
}

/// The newest events have races, too, without those of the connections.
fn long_run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, "../misuse/race_write_write.c", &["-g", "-libverbs", "-lpthread"])?;
    let script = format!("ROXIE_TRACE_EVENTS=4096 exec {}", program.path());
    let words = ["check", "--races", "--netdev", "lo", "--", "sh", "-c", &script];
    let ended = roxie(lab, place, Side::Server, name, &words)?;
    says(&ended, "roxie check: race-remote: ")?;
    says(&ended, "none of those before the newest events of each thread")
}

/// A file leaves findings out; its lines that name none are told.
fn suppressed(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, "../misuse/leaked_channel.c", &["-g", "-libverbs"])?;
    let file = format!("{}.txt", program.path());
    let text = "# known\nleaked-channel  m*n\ncq-*\n";
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let words = ["check", "--netdev", "lo", "--suppress", &file, "--", program.path()];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(&ended, "0 findings, 1 suppressed, in 1 process")?;
    says(&ended, &format!("unused suppression {file}:3: cq-*"))?;
    fs::remove_file(&file).map_err(|error| error.to_string())
}

/// Without a finding the exit code is that of the command; a signal counts as in shells.
fn exit_codes(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143), ("ibv_devinfo >/dev/null", 0)] {
        let words = ["check", "--netdev", "lo", "--", "sh", "-c", script];
        let ended = roxie(lab, place, Side::Server, name, &words)?;
        if ended.code() != Some(code) {
            return Err(format!("{script}: not {code}\n{}", ended.describe()));
        }
        if code != 0 {
            says(&ended, "no process of the command opened the device")?;
        }
    }
    let missing = roxie(lab, place, Side::Server, name, &["check", "--", "no-such-program"])?;
    says(&missing, "no-such-program: command not found")
}

/// Without debug information the stacks have functions only, and a line says what gives more.
fn without_lines(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    for (options, is_told) in [(&["-libverbs"][..], true), (&["-g", "-libverbs"], false)] {
        let program = build(lab, "../misuse/leaked_channel.c", options)?;
        let ended =
            roxie(lab, place, Side::Server, name, &["check", "--netdev", "lo", "--", program.path()])?;
        says(&ended, "#0 main")?;
        if ended.output.contains("compile the program with -g") != is_told {
            return Err(ended.describe());
        }
    }
    Ok(())
}
