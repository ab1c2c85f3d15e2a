//! The rules of the project as tests: unsafe code, dependencies of crates, sizes of lines, functions and
//! files, language, documentation.

#[path = "tidy/conformance.rs"]
mod conformance;
#[path = "tidy/events.rs"]
mod events;
#[path = "tidy/facts.rs"]
mod facts;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/operations.rs"]
mod operations;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/support.rs"]
mod support;

#[path = "tidy/examples.rs"]
mod examples;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/lines.rs"]
mod lines;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/size.rs"]
mod size;
#[path = "tidy/terminal.rs"]
mod terminal;
#[path = "tidy/tree.rs"]
mod tree;
#[path = "tidy/tried.rs"]
mod tried;
#[path = "tidy/waiting.rs"]
mod waiting;

use std::fs;
use std::process::Command;

use tree::root;

/// Files that may contain unsafe code: a few files of nic, the system calls, the C ABI.
const UNSAFE_ALLOWED: [&str; 6] = [
    "crates/nic/device/src/mr.rs",
    "crates/nic/sys/src/",
    // `Pd::reg_mr` is an unsafe function: the caller guarantees that the memory stays valid.
    "crates/nic/device/src/verbs/pd.rs",
    "crates/nic/verbs-c/",
    "crates/nic/device/tests/",
    "tests/tidy.rs",
];
/// Crates in which the compiler forbids unsafe code.
const FORBIDDEN: [&str; 11] = [
    "crates/nic/wire/src/lib.rs",
    "crates/xdp/bpf/src/lib.rs",
    "crates/xdp/hook/src/lib.rs",
    "crates/nic/transport/src/lib.rs",
    "crates/nic/rsocket/src/lib.rs",
    "crates/nic/net/src/lib.rs",
    "crates/lab/sim/src/lib.rs",
    "crates/tools/capture/src/lib.rs",
    "crates/cli/src/lib.rs",
    "crates/cli/src/main.rs",
    "fuzz/src/lib.rs",
];
/// Which of our crates each may depend on.
const ARROWS: [(&str, &[&str]); 15] = [
    ("nic/wire", &[]),
    ("xdp/bpf", &[]),
    ("nic/sys", &["bpf"]),
    ("nic/transport", &["wire"]),
    ("lab/sim", &["wire", "transport", "sys", "roxie", "roxie-hook"]),
    ("nic/device", &["wire", "bpf", "transport", "sys"]),
    ("xdp/hook", &["wire", "bpf", "transport", "sys", "roxie"]),
    ("nic/rsocket", &["wire", "transport", "sys", "roxie"]),
    ("nic/net", &["wire", "transport", "sys", "roxie", "roxie-rsocket"]),
    // It registers the hooks, and asks the control sockets of other processes.
    ("nic/verbs-c", &["wire", "transport", "sys", "roxie", "roxie-rsocket", "roxie-hook"]),
    ("nic/verbs-c/rdmacm", &[]),
    ("nic/verbs-c/audit", &[]),
    ("nic/verbs-c/preload", &[]),
    ("tools/capture", &["wire", "bpf", "sys", "roxie", "roxie-hook"]),
    ("cli", &["wire", "bpf", "transport", "sim", "sys", "roxie", "roxie-hook", "roxie-capture"]),
];

const OURS: [&str; 10] = [
    "wire",
    "bpf",
    "transport",
    "sim",
    "sys",
    "roxie",
    "roxie-hook",
    "roxie-rsocket",
    "roxie-net",
    "roxie-capture",
];

fn each_source(mut f: impl FnMut(&str, &str)) {
    for file in tree::files().iter().filter(|file| file.is_rust()) {
        f(&file.name, &file.text);
    }
}

/// Fails with the whole list: one violation per line, `file:line: what`.
fn none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}; {} violations:\n{}", violations.len(), violations.join("\n"));
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

/// A thread that holds the engine's lock must not wait: `sys::pause` notices it in a debug build, as the
/// other functions of the crate do that wait.
#[test]
fn the_nic_sleeps_in_one_function() {
    none("a sleep that may be under the engine's lock", &waiting::other_sleeps(&tree::files()));
}

/// Otherwise `cargo run` would find several programs, and users would build the features of the fuzz targets.
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
        for ours in OURS {
            let says = [format!("{ours}.workspace"), format!("{ours} =")];
            let depends = runtime.lines().any(|line| says.iter().any(|start| line.starts_with(start)));
            assert!(!depends || allowed.contains(&ours), "crate {name} must not depend on {ours}");
        }
    }
}

/// The libraries go into every program: they carry no ELF linker, no decompressor, no reader of captures,
/// no executor.
#[test]
fn the_device_and_the_c_libraries_contain_no_tools() {
    const TOOLS: [&str; 11] = [
        "object",
        "flate2",
        "miniz_oxide",
        "ruzstd",
        "lz4_flex",
        "lzma-rust2",
        "roxie-capture",
        "roxie-sim",
        "roxie-cli",
        "tokio",
        "async-io",
    ];
    for package in ["roxie", "roxie-ibverbs", "roxie-rdmacm", "roxie-audit", "roxie-preload"] {
        let tree = ["tree", "--locked", "--offline", "-p", package, "-e", "normal", "--prefix", "none"];
        let run = Command::new(env!("CARGO")).args(tree).args(["-f", "{p} {f}"]).current_dir(root()).output();
        let run = run.expect("cargo runs");
        assert!(run.status.success(), "cargo tree: {}", String::from_utf8_lossy(&run.stderr));
        let all = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(all.starts_with(&format!("{package} v")), "{all}");
        for line in all.lines() {
            let name = line.split(' ').next().unwrap_or_default();
            assert!(!TOOLS.contains(&name), "{package} contains {line}");
            let loads = name == "roxie-bpf" && line.split([' ', ',']).any(|feature| feature == "object");
            assert!(!loads, "{package} contains the loader of object files: {line}");
        }
    }
}

/// What a registry shows of a crate, and refuses without.
#[test]
fn crates_can_be_published() {
    for (name, _) in ARROWS {
        let dir = root().join("crates").join(name);
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).expect("exists");
        for field in ["description = ", "license.workspace", "readme = ", "keywords = ", "categories = "] {
            assert!(manifest.lines().any(|line| line.starts_with(field)), "crates/{name}: no {field}");
        }
        let words = |field| {
            manifest
                .lines()
                .find(|line| line.starts_with(field))
                .map_or(0, |line| line.matches(',').count() + 1)
        };
        assert!(words("keywords") <= 5 && words("categories") <= 5, "crates/{name}: at most five");
        assert!(dir.join("README.md").is_file(), "crates/{name} has no README.md");
    }
}

#[test]
fn production_lines_do_not_grow() {
    let files = tree::files();
    println!("production lines: {}", lines::production(&files).join(", "));
    none("take lines away, or raise the number with a reason", &lines::too_many(&files));
}

#[test]
fn every_asynchronous_event_has_a_test_or_a_line_in_the_deviations() {
    none("an asynchronous event is tested, or is never raised", &events::violations());
}

#[test]
fn no_file_is_longer_than_600_lines() {
    none("split these files by role", &size::long_files(&tree::files()));
}

#[test]
fn no_function_is_longer_than_80_lines() {
    none("split these functions", &size::long_functions(&tree::files()));
}

#[test]
fn no_line_is_wider_than_110_columns() {
    none("break these lines", &size::wide_lines(&tree::files()));
}

#[test]
fn the_glossary_is_followed() {
    none("use the words of tests/tidy/glossary.txt", &language::glossary(&tree::files()));
}

#[test]
fn sentences_name_the_actor() {
    none("name the actor", &language::pronouns(&tree::files()));
}

#[test]
fn public_crates_have_doc_examples_that_run() {
    none("add a ``` example to the documentation", &examples::missing(&tree::files(), &root()));
}

/// The packages run with glibc 2.28 (xtask/src/arch.rs), which does not define newer functions.
#[test]
fn no_function_is_called_that_glibc_2_28_lacks() {
    const NEWER: [&str; 9] = [
        "gettid",
        "tgkill",
        "close_range",
        "closefrom",
        "epoll_pwait2",
        "pidfd_open",
        "pidfd_getfd",
        "pidfd_send_signal",
        "process_madvise",
    ];
    let mut found = Vec::new();
    each_source(|name, text| {
        for line in text.lines().map(code).filter(|_| name.contains("/src/")) {
            for function in NEWER.iter().filter(|function| line.contains(&format!("libc::{function}("))) {
                found.push(format!("{name}: libc::{function}"));
            }
        }
    });
    none("functions newer than glibc 2.28: use libc::syscall", &found);
}

#[test]
fn no_leftovers_of_development_remain() {
    let mut found = Vec::new();
    each_source(|name, text| {
        for leftover in ["dbg!(", "todo!(", "unimplemented!(", "FIXME", "XXX"] {
            let lines = text.lines().enumerate().filter(|(_, line)| line.contains(leftover));
            found.extend(lines.map(|(index, _)| format!("{name}:{}: {leftover}", index + 1)));
        }
    });
    found.retain(|place| !place.starts_with("tests/tidy.rs:"));
    none("finish or remove these places", &found);
}

#[test]
fn every_file_says_what_it_is_for() {
    each_source(|name, text| {
        let says = text.lines().take(3).any(|l| l.starts_with("//!"));
        assert!(says, "{name} does not begin with a //! line");
    });
}

#[test]
fn text_reaches_the_terminal_through_one_file() {
    none(
        "use say! and terminal in crates/cli, roxie::say elsewhere",
        &terminal::other_writers(&tree::files()),
    );
}

/// A renamed test would no longer run alone.
#[test]
fn the_tests_that_nextest_runs_alone_exist_and_none_is_retried() {
    let config = fs::read_to_string(root().join(".config/nextest.toml")).expect("exists");
    assert!(!config.contains("retries"), "mend the test or the product");
    let names = config.split("test(").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let mut missing: Vec<_> = names.map(|name| name.trim_end_matches("::").to_owned()).collect();
    assert!(!missing.is_empty(), ".config/nextest.toml names tests");
    each_source(|_, text| {
        let items = text.lines().filter(|line| ["fn ", "mod "].iter().any(|item| line.contains(item)));
        let items: Vec<_> = items.collect();
        missing.retain(|name| !items.iter().any(|item| item.contains(&**name)));
    });
    none(".config/nextest.toml names tests that do not exist", &missing);
}

#[test]
fn the_tests_that_conformance_names_exist() {
    let complaints = conformance::complaints(&root());
    assert!(complaints.is_empty(), "docs/conformance.md:\n{}", complaints.join("\n"));
}

#[test]
fn the_links_of_the_documentation_lead_to_files() {
    let root = root();
    let complaints = [links::complaints(&root), links::architecture(&root), links::summary(&root)].concat();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn docs_support_lists_what_is_supported() {
    generated("docs/support.md", &support::text());
}

#[test]
fn docs_programs_tried_lists_the_programs_of_the_tests() {
    generated("docs/programs-tried.md", &tried::text());
}

/// Compares what is between the marks of a page. `ROXIE_BLESS=1` in the environment writes it instead.
fn generated(page: &str, want: &str) {
    const MARKS: [&str; 2] =
        ["<!-- made by ROXIE_BLESS=1 cargo test -p roxie-tests --test tidy -->\n", "<!-- end -->\n"];
    let path = root().join(page);
    let text = fs::read_to_string(&path).expect("exists");
    let (before, rest) = text.split_once(MARKS[0]).expect("the page has the first mark");
    let (tables, after) = rest.split_once(MARKS[1]).expect("the page has the second mark");
    if std::env::var_os("ROXIE_BLESS").is_some() {
        fs::write(&path, [before, MARKS[0], want, MARKS[1], after].concat()).expect("writable");
    } else {
        assert!(tables == want, "{page} should have these tables:\n{want}");
    }
}
