//! Where text leaves programs: the files that make characters safe which control a terminal.

use regex::Regex;

use crate::tree::File;

/// The program's file, and that of the libraries. libroxie_audit.so writes with a system call of its own.
const WRITERS: [&str; 2] = ["crates/cli/src/terminal.rs", "crates/nic/device/src/notice.rs"];

/// Each other place in the sources of a crate that prints or opens standard output or standard error. Tests
/// may say why they skip something.
pub(crate) fn other_writers(files: &[File]) -> Vec<String> {
    let prints = Regex::new(r"(?-u:\b)e?print(ln)?!|(^|[^.:a-zA-Z0-9_])(std::io::|io::)?std(out|err)\(\)")
        .expect("valid");
    let is_source = |file: &&File| {
        file.is_rust()
            && file.name.starts_with("crates/")
            && file.name.contains("/src/")
            && !file.name.ends_with("tests.rs")
            && !file.name.contains("/tests/")
            && !WRITERS.contains(&&*file.name)
    };
    let mut found = Vec::new();
    for file in files.iter().filter(is_source) {
        for (index, line) in file.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if prints.is_match(code) && !code.contains("skipped: ") {
                found.push(format!("{}:{}: {}", file.name, index + 1, line.trim()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prose::Language;

    #[test]
    fn every_way_to_the_terminal_is_found() {
        let found = |line: &str| {
            let (name, text) = ("crates/cli/src/run.rs".to_owned(), line.to_owned());
            other_writers(&[File { name, text, language: Language::Rust }]).len()
        };
        for line in
            ["eprintln!(\"x\")", "print!(\"x\")", "std::io::stdout()", "io::stderr().lock()", "(stdout())"]
        {
            assert_eq!(found(line), 1, "{line}");
        }
        for line in
            ["Terminal::stdout()", "child.stderr()", "say!(\"x\")", "println!(\"skipped: needs root\")"]
        {
            assert_eq!(found(line), 0, "{line}");
        }
    }
}
