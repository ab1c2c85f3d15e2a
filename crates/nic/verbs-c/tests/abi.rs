//! Compares the layouts and constants of `src/abi` with the installed C headers.
//!
//! The test writes a C program of `_Static_assert`s and compiles it. It leaves out structures, members and
//! constants that the installed headers lack. A structure without some of its members may be smaller there.
//! `ROXIE_TEST_CC` names another compiler with its options: that of another architecture, for which this test
//! was built.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use abi::Layout;

#[allow(dead_code, unreachable_pub)]
#[path = "../src/abi/mod.rs"]
mod abi;

const HEADERS: [&str; 4] = [
    "/usr/include/infiniband/ib_user_ioctl_verbs.h",
    "/usr/include/infiniband/verbs.h",
    "/usr/include/infiniband/verbs_api.h",
    "/usr/include/rdma/rdma_cma.h",
];
const INCLUDES: &str = "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n";

#[test]
fn layouts_equal_the_c_headers() {
    let Some(headers) = read_headers() else { return };
    let mut source = String::from(INCLUDES);
    source.push_str("#define AT(s, m, o) _Static_assert(offsetof(struct s, m) == (o), #s \".\" #m)\n");
    let mut compared = 0;
    for layout in layouts().filter(|layout| has_word(&headers, layout.name)) {
        compared += assertions(&mut source, layout, &headers);
    }
    compile("layouts", &source);
    println!("{compared} sizes and offsets are equal");
    assert!(compared > 350, "only {compared} compared");
}

#[test]
fn constants_equal_the_c_headers() {
    let Some(headers) = read_headers() else { return };
    let mut source = String::from(INCLUDES);
    let known: Vec<_> = constants().filter(|(name, _)| has_word(&headers, name)).collect();
    for (name, value) in &known {
        writeln!(source, "_Static_assert({name} == {value}LL, \"{name}\");").expect("writing to a string");
    }
    compile("constants", &source);
    println!("{} constants are equal", known.len());
    assert!(known.len() > 100, "only {} compared", known.len());
}

fn constants() -> impl Iterator<Item = &'static (&'static str, i64)> {
    [
        abi::cm::CONSTANTS,
        abi::counters::CONSTANTS,
        abi::device::CONSTANTS,
        abi::memory::CONSTANTS,
        abi::objects::CONSTANTS,
        abi::steering::CONSTANTS,
        abi::work::CONSTANTS,
    ]
    .into_iter()
    .flatten()
}

fn layouts() -> impl Iterator<Item = &'static Layout> {
    [
        abi::cm::LAYOUTS,
        abi::context::LAYOUTS,
        abi::counters::LAYOUTS,
        abi::device::LAYOUTS,
        abi::memory::LAYOUTS,
        abi::objects::LAYOUTS,
        abi::steering::LAYOUTS,
        abi::work::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}

/// Returns the text of the headers, or `None` after printing why the test cannot run.
fn read_headers() -> Option<String> {
    let read: Result<Vec<String>, _> = HEADERS.iter().map(fs::read_to_string).collect();
    let compiler = compiler().arg("--version").output();
    match (read, compiler) {
        (Ok(texts), Ok(_)) => Some(texts.concat()),
        (Err(_), _) => {
            println!("skipped: needs libibverbs-dev and librdmacm-dev");
            None
        }
        (_, Err(_)) => {
            println!("skipped: needs cc");
            None
        }
    }
}

/// Appends the assertions of one structure; returns their number.
fn assertions(source: &mut String, layout: &Layout, headers: &str) -> usize {
    let name = layout.name;
    let known: Vec<(String, usize)> = layout
        .members
        .iter()
        .map(|(path, offset)| (c_path(name, path), *offset))
        .filter(|(path, _)| path.split('.').all(|word| has_word(headers, word)))
        .collect();
    if name == "verbs_context" {
        // It grows at the front: only distances from the context are fixed.
        let context = layout.members.iter().find(|(path, _)| *path == ".context").expect("a member").1;
        for (path, offset) in &known {
            let before = context - offset;
            let distance = format!("offsetof(struct {name}, context) - offsetof(struct {name}, {path})");
            writeln!(source, "_Static_assert({distance} == {before}, \"{path}\");")
                .expect("writing to a string");
        }
        return known.len();
    }
    let relation = if known.len() == layout.members.len() { "==" } else { "<=" };
    writeln!(source, "_Static_assert(sizeof(struct {name}) {relation} {}, \"{name}\");", layout.size)
        .expect("writing to a string");
    for (path, offset) in &known {
        writeln!(source, "AT({name}, {path}, {offset});").expect("writing to a string");
    }
    known.len() + 1
}

/// Returns a member path as C writes it: without anonymous unions, and with names that are reserved in Rust.
fn c_path(structure: &str, path: &str) -> String {
    let path = path.trim_start_matches('.').replace("r#", "");
    match (structure, path.as_str()) {
        ("rdma_cm_id", p) => p.replace("route.addr.addr.", "route.addr.addr.ibaddr."),
        ("verbs_context", p) if p.starts_with("placeholder") => format!("ABI_{p}"),
        (_, p) => p.to_owned(),
    }
}

fn compiler() -> Command {
    let words = env::var("ROXIE_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().expect("the name of a compiler"));
    command.args(words);
    command
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

fn compile(name: &str, source: &str) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (input, output) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.o")));
    fs::write(&input, format!("{source}int main(void) {{ return 0; }}\n")).expect("writing the C file");
    let compiled = compiler().arg("-c").arg("-o").arg(&output).arg(&input).output().expect("running cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
