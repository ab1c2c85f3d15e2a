//! The project's own rules, checked: which crates may say `unsafe`, which may depend on which, how long a file may be.

#[path = "tidy/conformance.rs"]
mod conformance;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/operations.rs"]
mod operations;
#[path = "tidy/support.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};

/// Files that may contain unsafe code (house rule: the fenced places of nic, all of the C ABI).
const UNSAFE_ALLOWED: [&str; 6] = [
    "crates/nic/src/mr.rs",
    "crates/sys/src/",
    // `Pd::reg_mr` is an unsafe function: the caller vouches for the memory.
    "crates/nic/src/verbs/pd.rs",
    "crates/capi/",
    "crates/nic/tests/",
    "tests/tidy.rs",
];
/// Crates in which the compiler forbids unsafe code.
const FORBIDDEN: [&str; 7] = [
    "crates/wire/src/lib.rs",
    "crates/bpf/src/lib.rs",
    "crates/transport/src/lib.rs",
    "crates/sim/src/lib.rs",
    "crates/capture/src/lib.rs",
    "crates/cli/src/main.rs",
    "fuzz/src/lib.rs",
];
/// Which of our crates each may depend on.
const ARROWS: [(&str, &[&str]); 10] = [
    ("wire", &[]),
    ("bpf", &[]),
    ("sys", &["bpf"]),
    ("transport", &["wire"]),
    ("sim", &["wire", "transport"]),
    ("nic", &["wire", "bpf", "transport", "sys"]),
    ("capi", &["wire", "transport", "sys", "roxie"]),
    ("capi/rdmacm", &[]),
    ("capture", &["wire", "bpf", "sys", "roxie"]),
    ("cli", &["wire", "bpf", "transport", "sim", "sys", "roxie", "roxie-capture"]),
];
/// A file longer than this has more than one job.
const LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests live in the workspace").to_path_buf()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("readable").map(|e| e.expect("readable").path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            sources(&entry, out);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            out.push(entry);
        }
    }
}

fn each_source(mut f: impl FnMut(&str, &str)) {
    let root = root();
    let mut files = Vec::new();
    for dir in ["crates", "tests", "fuzz"] {
        sources(&root.join(dir), &mut files);
    }
    assert!(files.len() > 50, "the tree was found");
    for file in files {
        let name = file.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
        f(&name, &fs::read_to_string(&file).expect("source files are UTF-8"));
    }
}

/// The code part of a line.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn unsafe_code_stays_in_its_fences() {
    each_source(|name, text| {
        let allowed = UNSAFE_ALLOWED.iter().any(|prefix| name.starts_with(prefix));
        let says = |line: &str| {
            let line = code(line);
            line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl")
        };
        assert!(allowed || !text.lines().any(says), "{name} contains unsafe code");
    });
    for file in FORBIDDEN {
        let text = fs::read_to_string(root().join(file)).expect("exists");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{file} must forbid unsafe code");
    }
}

/// Else `cargo run` would not know what to run, and the programs would have what is for the fuzz targets.
#[test]
fn users_build_no_fuzz_targets() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("exists");
    let line = manifest.lines().find(|line| line.starts_with("default-members")).expect("there are some");
    assert!(line.contains("crates/cli") && !line.contains("fuzz"), "{line}");
}

#[test]
fn crates_depend_only_along_the_arrows() {
    for (name, allowed) in ARROWS {
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let text = fs::read_to_string(manifest).expect("exists");
        let runtime = text.split("[dev-dependencies]").next().unwrap_or_default();
        for ours in ["wire", "bpf", "transport", "sim", "sys", "roxie", "roxie-capture"] {
            let says = [format!("{ours}.workspace"), format!("{ours} =")];
            let depends = runtime.lines().any(|line| says.iter().any(|start| line.starts_with(start)));
            assert!(!depends || allowed.contains(&ours), "crate {name} must not depend on {ours}");
        }
    }
}

#[test]
fn files_have_one_job_and_no_leftovers() {
    each_source(|name, text| {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{name} has {lines} lines; split it by role");
        if name == "tests/tidy.rs" {
            return;
        }
        for leftover in ["dbg!(", "todo!(", "unimplemented!(", "FIXME", "XXX"] {
            let found = text.lines().position(|l| l.contains(leftover));
            assert!(found.is_none(), "{name}:{} says {leftover}", found.unwrap_or(0) + 1);
        }
    });
}

#[test]
fn every_file_says_what_it_is_for() {
    each_source(|name, text| {
        let says = text.lines().take(3).any(|l| l.starts_with("//!"));
        assert!(says, "{name} does not begin with a //! line");
    });
}

#[test]
fn the_tests_that_conformance_names_exist() {
    let complaints = conformance::complaints(&root());
    assert!(complaints.is_empty(), "docs/conformance.md:\n{}", complaints.join("\n"));
}

#[test]
fn the_links_of_the_documentation_lead_to_files() {
    let complaints = [links::complaints(&root()), links::architecture(&root())].concat();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// `ROXIE_BLESS=1` in the environment writes the tables instead.
#[test]
fn docs_support_lists_what_is_supported() {
    const MARKS: [&str; 2] =
        ["<!-- made by ROXIE_BLESS=1 cargo test -p roxie-tests --test tidy -->\n", "<!-- end -->\n"];
    let path = root().join("docs/support.md");
    let page = fs::read_to_string(&path).expect("exists");
    let (before, rest) = page.split_once(MARKS[0]).expect("docs/support.md has the first mark");
    let (tables, after) = rest.split_once(MARKS[1]).expect("docs/support.md has the second mark");
    let want = support::text();
    if std::env::var_os("ROXIE_BLESS").is_some() {
        fs::write(&path, [before, MARKS[0], &want, MARKS[1], after].concat()).expect("writable");
    } else {
        assert!(tables == want, "docs/support.md should have these tables:\n{want}");
    }
}
