//! Splits a source file into what people read (comments, string literals) and what the compiler reads.
//!
//! Both halves have the lines and columns of the file, so that a hit in either gives the line number.

/// A character that is neither a word nor white space: it stands for what belongs to the other half.
const OTHER: char = '\u{1}';

/// How a language writes comments and strings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Language {
    Rust,
    C,
    Python,
    /// Shell, Markdown, TOML: the whole file is prose.
    Text,
}

/// A file in two halves of equal shape.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) code: String,
    pub(crate) prose: String,
}

/// What the scanner is inside of.
#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    BlockComment(u32),
    /// Ends at this delimiter; whether a backslash escapes.
    Text(Delimiter, bool),
}

/// The end of a string literal: this character so many times, then so many `#`.
#[derive(Clone, Copy)]
struct Delimiter {
    quote: char,
    count: usize,
    hashes: usize,
}

impl Delimiter {
    fn ends(self, rest: &[char]) -> bool {
        rest.len() >= self.len()
            && rest[..self.count].iter().all(|&c| c == self.quote)
            && rest[self.count..self.len()].iter().all(|&c| c == '#')
    }

    fn len(self) -> usize {
        self.count + self.hashes
    }
}

pub(crate) fn split(text: &str, language: Language) -> Split {
    if language == Language::Text {
        return Split { code: String::new(), prose: without_code_spans(text) };
    }
    let chars: Vec<char> = text.chars().collect();
    let mut scanner = Scanner { split: Split { code: String::new(), prose: String::new() }, language };
    let (mut at, mut state) = (0, State::Code);
    while at < chars.len() {
        let (next, taken) = match state {
            State::Code => scanner.code(&chars, at),
            State::LineComment => scanner.line_comment(&chars[at..]),
            State::BlockComment(depth) => scanner.block_comment(&chars[at..], depth),
            State::Text(end, escapes) => scanner.string(&chars[at..], end, escapes),
        };
        (state, at) = (next, at + taken);
    }
    scanner.split.prose = without_code_spans(&scanner.split.prose);
    scanner.split
}

struct Scanner {
    split: Split,
    language: Language,
}

impl Scanner {
    /// One step in code: returns the state after it and how many characters it took.
    fn code(&mut self, chars: &[char], at: usize) -> (State, usize) {
        let rest = &chars[at..];
        let slashes = self.language != Language::Python;
        let comment = if slashes { rest.starts_with(&['/', '/']) } else { rest[0] == '#' };
        if comment {
            let marks = rest.iter().take_while(|c| matches!(c, '/' | '!' | '#')).count();
            self.blank(&rest[..marks]);
            return (State::LineComment, marks);
        }
        if slashes && rest.starts_with(&['/', '*']) {
            self.blank(&rest[..2]);
            return (State::BlockComment(1), 2);
        }
        if let Some((delimiter, escapes, taken)) = self.opening(chars, at) {
            self.other(&rest[..taken]);
            return (State::Text(delimiter, escapes), taken);
        }
        let taken = if slashes && rest[0] == '\'' { character(rest).unwrap_or(1) } else { 1 };
        if taken > 1 {
            self.other(&rest[..taken])
        } else {
            self.push(rest[0], OTHER)
        }
        (State::Code, taken)
    }

    /// The string literal that begins here: its end, whether a backslash escapes, the length of its start.
    fn opening(&self, chars: &[char], at: usize) -> Option<(Delimiter, bool, usize)> {
        let rest = &chars[at..];
        let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
        if self.language == Language::Python && matches!(rest[0], '"' | '\'') {
            let count = if rest.len() > 2 && rest[1] == rest[0] && rest[2] == rest[0] { 3 } else { 1 };
            return Some((Delimiter { quote: rest[0], count, hashes: 0 }, true, count));
        }
        if rest[0] == '"' {
            return Some((Delimiter { quote: '"', count: 1, hashes: 0 }, true, 1));
        }
        if self.language != Language::Rust || in_word {
            return None;
        }
        let prefix = rest.iter().take(2).take_while(|c| matches!(c, 'b' | 'c' | 'r')).count();
        let raw = prefix > 0 && rest[prefix - 1] == 'r';
        let hashes = if raw { rest[prefix..].iter().take_while(|&&c| c == '#').count() } else { 0 };
        let quoted = prefix > 0 && rest.get(prefix + hashes) == Some(&'"');
        quoted.then_some((Delimiter { quote: '"', count: 1, hashes }, !raw, prefix + hashes + 1))
    }

    fn line_comment(&mut self, rest: &[char]) -> (State, usize) {
        self.prose(rest[0]);
        (if rest[0] == '\n' { State::Code } else { State::LineComment }, 1)
    }

    fn block_comment(&mut self, rest: &[char], depth: u32) -> (State, usize) {
        if rest.starts_with(&['*', '/']) {
            self.blank(&rest[..2]);
            return (if depth == 1 { State::Code } else { State::BlockComment(depth - 1) }, 2);
        }
        if self.language == Language::Rust && rest.starts_with(&['/', '*']) {
            self.blank(&rest[..2]);
            return (State::BlockComment(depth + 1), 2);
        }
        self.prose(if rest[0] == '*' { ' ' } else { rest[0] });
        (State::BlockComment(depth), 1)
    }

    fn string(&mut self, rest: &[char], end: Delimiter, escapes: bool) -> (State, usize) {
        if end.ends(rest) {
            self.other(&rest[..end.len()]);
            return (State::Code, end.len());
        }
        if escapes && rest[0] == '\\' && rest.len() > 1 {
            self.blank(&rest[..2]);
            return (State::Text(end, escapes), 2);
        }
        self.prose(rest[0]);
        (State::Text(end, escapes), 1)
    }

    fn push(&mut self, code: char, prose: char) {
        // White space shows in both halves: a sentence goes on behind the indentation of the next line.
        let blank = if code.is_whitespace() { code } else { prose };
        self.split.code.push(code);
        self.split.prose.push(blank);
    }

    fn prose(&mut self, c: char) {
        self.split.code.push(if c.is_whitespace() { c } else { ' ' });
        self.split.prose.push(c);
    }

    /// Marks of comments and escapes: white space in both halves.
    fn blank(&mut self, chars: &[char]) {
        for &c in chars {
            self.prose(if c == '\n' { c } else { ' ' });
        }
    }

    /// Quotes and character literals: they separate sentences, and are no code that counts.
    fn other(&mut self, chars: &[char]) {
        for &c in chars {
            self.split.code.push(if c == '\n' { c } else { ' ' });
            self.split.prose.push(if c == '\n' { c } else { OTHER });
        }
    }
}

/// The length of the character literal that begins with this quote; `None` for a lifetime.
fn character(rest: &[char]) -> Option<usize> {
    match rest.get(1)? {
        '\\' => rest.iter().skip(3).position(|&c| c == '\'').map(|at| at + 4),
        _ => (rest.get(2) == Some(&'\'')).then_some(3),
    }
}

/// Blanks the text between two backquotes on one line: it is a name in the code.
fn without_code_spans(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let fence = line.contains("```");
        let parts: Vec<&str> = line.split('`').collect();
        for (index, part) in parts.iter().enumerate() {
            let inside = index % 2 == 1 && index + 1 < parts.len() && !fence;
            out.extend(part.chars().map(|c| if inside { OTHER } else { c }));
            if index + 1 < parts.len() {
                out.push(OTHER);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prose(text: &str, language: Language) -> Vec<String> {
        let split = split(text, language);
        assert_eq!(split.code.lines().count(), text.lines().count(), "{text}");
        split.prose.split(OTHER).map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()
    }

    #[test]
    fn comments_and_strings_of_rust_are_prose() {
        let text = "/// One\n/// two.\nfn f<'a>(x: &'a str) { g('\"', '\\'', b\"three\", r#\"fo\"ur\"#); \
                    /* fi /* v */ e */ }\n";
        let found = prose(text, Language::Rust);
        assert_eq!(found, ["One\n    two.", "three", "fo\"ur", "fi    v    e"]);
    }

    #[test]
    fn names_in_backquotes_and_code_are_not_prose() {
        let text = "let one = 1; // takes `one` and `two`\n";
        assert_eq!(prose(text, Language::Rust), ["takes", "and"]);
    }

    #[test]
    fn a_string_goes_on_behind_a_backslash_at_the_end_of_the_line() {
        assert_eq!(prose("\"one \\\n  two\"", Language::Rust), ["one  \n  two"]);
    }

    #[test]
    fn comments_and_strings_of_c_and_python_are_prose() {
        assert_eq!(
            prose("int a = 'b'; /* one */ puts(\"two\"); // three\n", Language::C),
            ["one", "two", "three"]
        );
        assert_eq!(
            prose("a = 'one' # two\nb = \"\"\"thr\"ee\"\"\"\n", Language::Python),
            ["one", "two", "thr\"ee"]
        );
    }

    #[test]
    fn the_code_half_has_the_braces_of_the_code_only() {
        let split = split("fn f() { \"}\"; '}'; /* } */ } // }\n", Language::Rust);
        assert_eq!(split.code.matches('}').count(), 1);
    }
}
