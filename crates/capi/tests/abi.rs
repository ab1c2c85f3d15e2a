//! The layouts of `src/abi` against the C headers that are installed.
//!
//! Writes a C program of `_Static_assert`s and compiles it. Members that newer headers added are left out when the
//! installed ones lack them; then the structure may be larger here than there.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use abi::Layout;

#[allow(dead_code, unreachable_pub)]
#[path = "../src/abi/mod.rs"]
mod abi;

const HEADERS: [&str; 2] = ["/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h"];

#[test]
fn layouts_equal_the_c_headers() {
    let Some(headers) = read_headers() else { return };
    let mut source = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         #define AT(s, m, o) _Static_assert(offsetof(struct s, m) == (o), #s \".\" #m)\n",
    );
    let mut compared = 0;
    for layout in layouts() {
        compared += assertions(&mut source, layout, &headers);
    }
    source.push_str("int main(void) { return 0; }\n");
    compile(&source);
    println!("{compared} sizes and offsets are equal");
    assert!(compared > 350, "only {compared} compared");
}

fn layouts() -> impl Iterator<Item = &'static Layout> {
    [abi::cm::LAYOUTS, abi::context::LAYOUTS, abi::device::LAYOUTS, abi::objects::LAYOUTS, abi::work::LAYOUTS]
        .into_iter()
        .flatten()
}

/// The text of the headers, or `None` after saying why the test cannot run.
fn read_headers() -> Option<String> {
    let read: Result<Vec<String>, _> = HEADERS.iter().map(fs::read_to_string).collect();
    let compiler = Command::new("cc").arg("--version").output();
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

/// Appends the assertions of one structure; returns how many.
fn assertions(source: &mut String, layout: &Layout, headers: &str) -> usize {
    let name = layout.name;
    let known: Vec<(String, usize)> = layout
        .members
        .iter()
        .map(|(path, offset)| (c_path(name, path), *offset))
        .filter(|(path, _)| path.split('.').all(|word| has_word(headers, word)))
        .collect();
    if name == "verbs_context" {
        // Grows at the front: only distances from the context are fixed.
        let context = layout.members.iter().find(|(path, _)| *path == ".context").expect("a member").1;
        for (path, offset) in &known {
            let before = context - offset;
            let line = format!(
                "_Static_assert(offsetof(struct {name}, context) - offsetof(struct {name}, {path}) == {before}, \"{path}\");"
            );
            writeln!(source, "{line}").expect("writing to a string");
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

/// A member path as C writes it: unions that are anonymous there, and names that Rust cannot use.
fn c_path(structure: &str, path: &str) -> String {
    let path = path.trim_start_matches('.').replace("r#", "");
    match (structure, path.as_str()) {
        ("rdma_cm_id", p) => p.replace("route.addr.addr.", "route.addr.addr.ibaddr."),
        ("verbs_context", p) if p.starts_with("placeholder") => format!("ABI_{p}"),
        (_, p) => p.to_owned(),
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

fn compile(source: &str) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (input, output) = (dir.join("abi.c"), dir.join("abi.o"));
    fs::write(&input, source).expect("writing abi.c");
    let compiled =
        Command::new("cc").arg("-c").arg("-o").arg(&output).arg(&input).output().expect("running cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
