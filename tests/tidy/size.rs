//! How wide lines are, and how long functions and files.

use crate::prose;
use crate::tree::File;

/// Columns of a line, in source and Markdown: what `rustfmt.toml` sets for code.
const COLUMNS_MAX: usize = 110;
/// Lines of a file: one that is longer has more than one role.
const LINES_MAX: usize = 600;
/// Lines of a function, from `fn` to its closing brace: two screens.
const FUNCTION_MAX: usize = 80;
/// Functions that may be longer: file, name, reason.
const LONG_FUNCTIONS: [(&str, &str, &str); 1] = [(
    "crates/xdp/bpf/src/vm/exec.rs",
    "execute",
    "one `match` with an arm per operation: the compiler keeps the registers and one jump table together",
)];

/// Lines that are too wide. A line that is one word (an address) cannot be broken.
pub(crate) fn wide_lines(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.is_toml()) {
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            let words = line.trim_start_matches([' ', '/', '!', '#', '*', '-']).split_whitespace().count();
            let is_address = line.contains("://") && words <= 2;
            if columns > COLUMNS_MAX && !is_address {
                found.push(format!("{}:{}: {columns} columns", file.name, index + 1));
            }
        }
    }
    found
}

/// Files that are too long.
pub(crate) fn long_files(files: &[File]) -> Vec<String> {
    let lines = files.iter().map(|file| (file, file.text.lines().count()));
    lines
        .filter(|&(_, lines)| lines > LINES_MAX)
        .map(|(file, lines)| format!("{}:{lines}: {lines} lines, split the file by role", file.name))
        .collect()
}

/// Functions that are too long.
pub(crate) fn long_functions(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (name, line, lines) in functions(&prose::split(&file.text, file.language).code) {
            let is_exempt = LONG_FUNCTIONS.iter().any(|(f, n, _)| *f == file.name && *n == name);
            if lines > FUNCTION_MAX && !is_exempt {
                found.push(format!("{}:{line}: {name} has {lines} lines", file.name));
            }
        }
    }
    found
}

/// Name, first line and number of lines of each function that has a body.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in code.match_indices("fn ") {
        let name: String = code[at + 3..].trim_start().chars().take_while(|&c| is_word(c)).collect();
        if name.is_empty() || code[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        if let Some(end) = end_of_body(&code[at..]) {
            let line = code[..at].matches('\n').count() + 1;
            found.push((name, line, code[at..at + end].matches('\n').count() + 1));
        }
    }
    found
}

/// Where the body of the function that begins here ends; `None` if it has none, as in a trait.
fn end_of_body(code: &str) -> Option<usize> {
    let (mut braces, mut brackets) = (0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if braces == 0 && brackets == 0 => return None,
            // A brace inside of brackets before the body is a constant: `[u8; { N }]`.
            '{' if braces > 0 || brackets == 0 => braces += 1,
            '}' if braces > 0 => {
                braces -= 1;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_ends_at_its_closing_brace() {
        let code =
            "trait T {\n fn a(x: [u8; 3]);\n fn b() -> u8 {\n  if true { 1 } else { 2 }\n }\n}\nfn c() {}\n";
        assert_eq!(functions(code), [("b".into(), 3, 3), ("c".into(), 7, 1)]);
    }
}
