//! The options that pages name exist, and belong to a program that the page names: `roxie` by its clap
//! definitions, scripts of the tree by their text, other programs by [`FOREIGN`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};

use crate::args::Args;

/// Options of other programs. A page that has one names its program.
const FOREIGN: [(&str, &str); 33] = [
    ("apt-get", "no-install-recommends"),
    ("bwrap", "dev proc ro-bind tmpfs unshare-all share-net"),
    (
        "cargo",
        "all-targets baseline-rev cfg check dry-run example features lib locked open profile release shard \
         sharding target test workspace nocapture all minutes",
    ),
    ("callgrind_annotate", "inclusive"),
    ("ceph-mon", "mkfs monmap osd-uuid"),
    ("COPY", "from"),
    (
        "configure",
        "disable-tests disable-unit-tests disable-werror with-dpdk with-rdma without-crypto \
         without-isal-crypto without-nvme-cuse",
    ),
    ("curl", "unix-socket"),
    ("fio", "bs hostname iodepth ioengine listen name port rw size thread verb verify"),
    ("gcc", "build-id nmagic"),
    ("gdb", "args"),
    ("git", "init"),
    ("ib_send_bw", "use-srq"),
    ("meson", "test-dir"),
    ("monmaptool", "addv create fsid"),
    ("mpi4py", "include no-binary no-deps"),
    ("mpirun", "allow-run-as-root mca oversubscribe"),
    ("nsenter", "net"),
    ("perf", "add"),
    ("pip", "no-deps target"),
    ("pkg-config", "cflags libs variable"),
    ("podman", "cap-drop device network read-only rm"),
    ("pytest", "roxie"),
    ("rados", "no-cleanup"),
    ("raw_ethernet_bw", "client server"),
    ("SPDK", "no-huge"),
    ("srun", "mpi ntasks-per-node"),
    ("tgtadm", "force lld lun mode op targetname tid"),
    ("tgtd", "iser"),
    ("valgrind", "callgrind-out-file tool"),
    ("venv", "system-site-packages"),
    ("ctest", "test-dir"),
    ("docker", "cap-drop device network read-only rm"),
];

/// Words that end the options of `roxie` on a command line.
const ENDS: [&str; 8] = ["--", "|", "||", "&", "&&", ";", ">", "#"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A page of docs/; `None` in a package of the crate alone.
pub(crate) fn page(name: &str) -> Option<String> {
    let page = fs::read_to_string(root().join("docs").join(name)).ok();
    if page.is_none() {
        println!("skipped: needs the repository");
    }
    page
}

/// The pages and the scripts below a directory.
fn walk(dir: &Path, pages: &mut Vec<PathBuf>, scripts: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if !["target", ".git", "corpus"].iter().any(|other| name == *other) {
                walk(&path, pages, scripts);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        } else if path.extension().is_none()
            && let Ok(text) = fs::read_to_string(&path)
            && text.starts_with("#!")
        {
            scripts.push((path, text));
        }
    }
}

/// The long options in a text, without the hyphens.
fn options(text: &str) -> BTreeSet<&str> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let starts = text.match_indices("--").filter(|(at, _)| !text[..*at].ends_with(is_of_word));
    let words = starts.map(|(at, _)| {
        let rest = &text[at + 2..];
        &rest[..rest.find(|c| !is_of_word(c)).unwrap_or(rest.len())]
    });
    // Options of perftest and librdmacm's programs have underscores.
    let is_option = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.contains('_');
    words.filter(|word| is_option(word) && !word.ends_with('-')).collect()
}

/// Whether a text has a name as a word of its own.
fn names(text: &str, name: &str) -> bool {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "-_/".contains(c);
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].strip_suffix("./").unwrap_or(&text[..at]);
        !before.ends_with(is_of_word) && !text[at + name.len()..].starts_with(is_of_word)
    })
}

/// Follows the words behind `roxie` to the command that they name, and returns the words behind it.
fn command<'a, 'w>(mut command: &'a Command, mut words: &'w [&'w str]) -> (&'a Command, &'w [&'w str]) {
    while let Some((first, rest)) = words.split_first()
        && let Some(next) = command.find_subcommand(first.trim_end_matches(['`', ',', '.', ')', '\'']))
    {
        (command, words) = (next, rest);
    }
    (command, words)
}

fn has(command: &Command, option: &str) -> bool {
    let is_of = |arg: &Arg| arg.get_long_and_visible_aliases().is_some_and(|longs| longs.contains(&option));
    ["help", "version"].contains(&option) || command.get_arguments().any(is_of)
}

/// The words behind each `roxie` of a text.
fn behind_roxie(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let begins_word = |before: &str| before.ends_with(|c: char| c.is_whitespace() || "(/\"`".contains(c));
    let found = text.match_indices("roxie ").filter(move |(at, _)| *at == 0 || begins_word(&text[..*at]));
    found.map(|(at, _)| text[at..].split_whitespace().skip(1).collect())
}

/// Finds the options that a page gives to a command of `roxie` that does not have them.
fn misplaced(root: &Command, text: &str) -> Vec<String> {
    let mut misplaced = Vec::new();
    for line in text.replace("\\\n", " ").split(['\n', '`']) {
        for words in behind_roxie(line) {
            let (command, words) = command(root, &words);
            let ends = |word: &&&str| ENDS.contains(&word.trim_matches(['\'', ')'])) || word.ends_with(';');
            let own = words.iter().take_while(|word| !ends(word)).copied().collect::<Vec<_>>().join(" ");
            let unknown = options(&own).into_iter().filter(|option| !has(command, option));
            let name = command.get_name();
            // `roxie` may be the subject of a sentence, or a crate.
            if name != "roxie" {
                misplaced.extend(unknown.map(|option| format!("roxie {name} has no --{option}")));
            }
        }
    }
    misplaced
}

#[test]
fn a_page_names_options_of_the_programs_that_it_names() {
    let (root, roxie) = (root(), Args::command());
    let (mut pages, mut scripts) = (Vec::new(), Vec::new());
    walk(&root, &mut pages, &mut scripts);
    assert!(pages.len() > 30 && scripts.len() > 10, "the tree was not found at {}", root.display());
    let mut wrong = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).expect("pages are readable");
        wrong.extend(misplaced(&roxie, &text).iter().map(|what| format!("{}: {what}", page.display())));
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let commands: Vec<_> = behind_roxie(&joined).map(|words| command(&roxie, &words).0).collect();
        let is_of_script = |option: &str| {
            scripts.iter().any(|(path, script)| {
                let below = path.strip_prefix(&root).expect("found below the root").to_string_lossy();
                let is_near = path.parent() == page.parent();
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                (names(&text, &below) || (is_near && names(&text, &file))) && options(script).contains(option)
            })
        };
        let is_foreign = |option: &str| {
            FOREIGN
                .iter()
                .any(|(program, has)| has.split(' ').any(|one| one == option) && names(&text, program))
        };
        let is_known = |option: &&str| {
            commands.iter().any(|command| has(command, option)) || is_of_script(option) || is_foreign(option)
        };
        let unknown = options(&text).into_iter().filter(|option| !is_known(option));
        wrong.extend(unknown.map(|option| format!("{}: --{option}", page.display())));
    }
    assert!(wrong.is_empty(), "no program that these pages name has these options:\n{}", wrong.join("\n"));
}
