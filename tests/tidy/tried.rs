//! The tables of docs/programs-tried.md, generated from the rows at the heads of the tests of applications.

use std::fs;

use crate::root;

/// Returns the text between the marks of the page.
pub(crate) fn text() -> String {
    let folder = root().join("tests/applications");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("exists");
    let main = read("main.rs");
    let (always, full) = main.split_once("if full {").expect("main.rs has cases of --full");
    let entries = fs::read_dir(&folder).expect("exists");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".rs")).collect();
    names.sort_unstable();
    for name in &names {
        let is_test = has_cases(&main, name);
        assert!(
            is_test == rows(&read(name)).next().is_some(),
            "{name} has a row at its head if it is a test"
        );
    }
    let table = |of: &str| {
        let tests = names.iter().filter(|name| has_cases(of, name));
        let line = |name: &String| {
            rows(&read(name)).map(|row| format!("| {row} `{}` |\n", stem(name))).collect::<String>()
        };
        ["| program | what is tested | file |\n|---|---|---|\n".to_owned()]
            .into_iter()
            .chain(tests.map(line))
            .collect::<String>()
    };
    format!("In every `./check`:\n\n{}\nWith `./check --full`:\n\n{}", table(always), table(full))
}

/// True if this part of main.rs takes the cases of the file.
fn has_cases(part: &str, name: &str) -> bool {
    let cases = format!("{}::cases", stem(name));
    part.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').any(|word| word == cases)
}

fn stem(name: &str) -> &str {
    name.trim_end_matches(".rs")
}

fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("//! | "))
}
