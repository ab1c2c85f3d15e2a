//! The commands of `docs/debuggers.md`: valgrind, the sanitizers and gdb see the device in the process.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;
use roxie_tests::suite::Need;

use crate::case::{Case, build, good, roxie, says};

const RECEIVED: &str = "../tools/received.c";
const RACER: &str = "../tools/racer.c";

pub(crate) fn cases() -> Vec<Case> {
    let place = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    let case = |what: &str, tool, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        Case::new(place, what, "cc", move |lab, name| run(lab, &place, name)).with(Need::Program(tool), tool)
    };
    let sanitizer = |kind| Need::Found(has_sanitizer(kind));
    vec![
        case("valgrind knows the bytes that the device writes", "valgrind", valgrind),
        case("AddressSanitizer finds a read behind a receive", "cc", address)
            .with(sanitizer("address"), "libasan"),
        case("ThreadSanitizer finds a race of polling threads", "cc", thread)
            .with(sanitizer("thread"), "libtsan"),
        case("gdb stops at a post and names the device's threads", "gdb", gdb),
    ]
}

/// Whether the compiler links a program with this sanitizer.
fn has_sanitizer(kind: &str) -> bool {
    let mut compiler = Command::new("cc");
    compiler.args([&format!("-fsanitize={kind}"), "-xc", "-", "-o", "/dev/null"]);
    let Ok(mut running) = compiler.stdin(Stdio::piped()).stderr(Stdio::null()).spawn() else { return false };
    let written = running.stdin.take().is_some_and(|mut input| input.write_all(b"int main(){}").is_ok());
    running.wait().is_ok_and(|status| written && status.success())
}

/// Runs a command of the page with the built program instead of `NAME`, which the page calls it.
fn of_page(
    lab: &Lab,
    place: &Place,
    name: &str,
    line: &str,
    (called, built): (&str, &str),
) -> Result<Ended, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/debuggers.md");
    let page = fs::read_to_string(page).map_err(|error| error.to_string())?;
    // The page breaks long lines.
    let page = page.replace(" \\\n         ", "");
    if !page.contains(&format!("    $ {line}\n")) {
        return Err(format!("docs/debuggers.md has no command: {line}"));
    }
    let run = format!("{} run --netdev lo", lab.roxie().display());
    let script = line.replace("roxie run", &run).replace(called, built);
    roxie(lab, place, Side::Server, name, &["run", "--netdev", "lo", "--", "sh", "-c", &script])
}

/// Fails if the output has `needle`.
fn is_without(ended: &Ended, needle: &str) -> Result<(), String> {
    if ended.output.contains(needle) { Err(format!("'{needle}'\n{}", ended.describe())) } else { Ok(()) }
}

fn valgrind(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, RECEIVED, &["-g", "-libverbs"])?;
    let line = "roxie run -- valgrind ./received 8";
    let ended = of_page(lab, place, name, line, ("./received", program.path()))?;
    says(&ended, "Conditional jump or move depends on uninitialised value(s)")?;
    says(&ended, "main (received.c:25)")?;
    is_without(&ended, "main (received.c:23)")?;
    // Of the received bytes nothing is reported.
    let words = ["run", "--netdev", "lo", "--", "valgrind", program.path(), "7"];
    let ended = roxie(lab, place, Side::Server, name, &words)?;
    is_without(&ended, "Conditional jump")
}

fn address(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, RECEIVED, &["-g", "-fsanitize=address", "-libverbs"])?;
    let line = "roxie run -- ./received_asan 64 || true";
    let ended = of_page(lab, place, name, line, ("./received_asan", program.path()))?;
    says(&ended, "ERROR: AddressSanitizer: heap-buffer-overflow")?;
    says(&ended, "received.c:25")?;
    let words = ["run", "--netdev", "lo", "--", program.path(), "8"];
    is_without(&good(roxie(lab, place, Side::Server, name, &words)?)?, "AddressSanitizer")
}

fn thread(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, RACER, &["-g", "-fsanitize=thread", "-libverbs", "-lpthread"])?;
    let line = "TSAN_OPTIONS=ignore_noninstrumented_modules=1 roxie run -- ./racer || true";
    let ended = of_page(lab, place, name, line, ("./racer", program.path()))?;
    says(&ended, "WARNING: ThreadSanitizer: data race")?;
    says(&ended, "racer.c:13")
}

fn gdb(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, RECEIVED, &["-g", "-libverbs"])?;
    let line = "roxie run -- gdb -q -batch -ex 'break ibv_post_send' -ex run -ex 'bt 3' -ex 'info threads' \
                --args ./received 8";
    let ended = of_page(lab, place, name, line, ("./received", program.path()))?;
    says(&ended, "main (argc=2")?;
    says(&ended, "roxie-engine")
}
