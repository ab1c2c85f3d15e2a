//! Production lines: those below `src` that are neither blank, nor comments, nor tests.

use crate::prose;
use crate::tree::File;

/// The houses with their folders, and the most production lines of each. A change that adds lines takes as
/// many away, or says in its commit what they are for.
const MOST: [(&str, &[&str], usize); 8] = [
    ("the NIC", &NIC, 60_275),
    ("rsocket", &["crates/nic/rsocket/"], 2_174),
    ("net", &["crates/nic/net/"], 1_144),
    ("XDP", &["crates/xdp/"], 14_213),
    ("tools that read", &["crates/tools/"], 10_043),
    ("the laboratory", &["crates/lab/"], 9_153),
    ("cli", &["crates/cli/"], 19_538),
    ("xtask", &["xtask/"], 860),
];
/// What a program needs to have an RDMA device.
const NIC: [&str; 5] = [
    "crates/nic/wire/",
    "crates/nic/transport/",
    "crates/nic/sys/",
    "crates/nic/device/",
    "crates/nic/verbs-c/",
];

/// The houses with their lines, and those of all together.
pub(crate) fn production(files: &[File]) -> Vec<String> {
    let mut lines: Vec<String> =
        MOST.iter().map(|(house, folders, _)| format!("{house} {}", of(files, folders))).collect();
    let all: usize = MOST.iter().map(|(_, folders, _)| of(files, folders)).sum();
    lines.push(format!("all {all}"));
    lines
}

/// Houses with too many.
pub(crate) fn too_many(files: &[File]) -> Vec<String> {
    let over = MOST.iter().map(|&(house, folders, most)| (house, of(files, folders), most));
    over.filter(|(_, lines, most)| lines > most)
        .map(|(house, lines, most)| format!("{house}: {lines} production lines, at most {most}"))
        .collect()
}

fn of(files: &[File], folders: &[&str]) -> usize {
    let is_production = |file: &&File| {
        let name = file.name.trim_end_matches(".rs");
        let below = name.split_once("/src/").map(|(_, below)| below);
        file.is_rust()
            && folders.iter().any(|folder| name.starts_with(folder))
            && below.is_some_and(|below| !below.split('/').any(|part| part == "tests"))
            && !name.ends_with("_tests")
    };
    files.iter().filter(is_production).map(count).sum()
}

fn count(file: &File) -> usize {
    let split = prose::split(&file.text, file.language);
    let (lines, texts): (Vec<&str>, Vec<&str>) = (split.code.lines().collect(), file.text.lines().collect());
    let mut count = 0;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].trim();
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            at += item(&lines[at..]);
            continue;
        }
        let text = texts.get(at).map_or("", |text| text.trim());
        count += usize::from(!text.is_empty() && !text.starts_with("//"));
        at += 1;
    }
    count
}

/// Lines of the item behind an attribute, with its body: up to the end of its braces, or a `;` or `,`.
fn item(lines: &[&str]) -> usize {
    let mut depth = 0_i32;
    for (index, line) in lines.iter().enumerate() {
        let count = |marks: [char; 3]| line.matches(marks).count() as i32;
        depth += count(['{', '(', '[']) - count(['}', ')', ']']);
        let line = line.trim();
        if depth < 0 {
            return index;
        }
        if depth == 0 && !line.starts_with("#[") && line.ends_with([';', ',', '}']) {
            return index + 1;
        }
    }
    lines.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prose::Language;

    #[test]
    fn tests_comments_and_blank_lines_do_not_count() {
        let text = "//! A.\n\nuse b::C;\n#[cfg(test)]\nuse d::E;\nenum G {\n    #[cfg(test)]\n    H,\n}\n\
                    fn f() {\n    g(\"{\");\n}\n\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn t() {}\n}\n\
                    // z\nconst N: u8 = 1;\n";
        let file = File { name: "crates/nic/a/src/b.rs".into(), text: text.into(), language: Language::Rust };
        let files = [file];
        assert_eq!((of(&files, &["crates/xdp/", "crates/nic/"]), of(&files, &["crates/xdp/"])), (7, 0));
    }
}
