//! Prints findings, with names and lines: as text or JSON, each once.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::mem;
use std::path::PathBuf;

use roxie_capture::paint;
use serde::Serialize;
use wire::text::Printable;

use crate::failure::{During, Outcome};
use crate::processes::number;
use crate::terminal::Stream;

use super::finding::{Failed, Finding, Stack};
use super::suppress::Suppressions;
use super::symbols::{Place, Symbols};

/// Where findings go.
pub(super) struct Report {
    output: Box<dyn Write>,
    /// The file of the output.
    path: Option<PathBuf>,
    json: bool,
    suppressions: Suppressions,
    symbols: Symbols,
    /// Kind and places of those that were printed.
    printed: HashSet<String>,
    /// Findings about connections: the numbers of both queue pairs, and what they say.
    connections: Vec<((u32, u32), String)>,
    suppressed: usize,
    /// Processes with a finding that is not of [`failed`](Self::failed).
    faulty: HashSet<u32>,
    /// What processes that failed did not end, or waited for: told at the end, unless another process has a
    /// finding.
    failed: Vec<Finding>,
    /// Findings that repeat a printed one in another process.
    repeated: usize,
    /// Whether a program has symbols, but no debug information.
    lacks_lines: bool,
}

/// A call stack with names.
#[derive(Debug, Serialize)]
struct Named {
    what: String,
    /// Its process, if that is not the one of the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
    thread: String,
    frames: Vec<Place>,
}

/// A finding as one JSON object.
#[derive(Debug, Serialize)]
struct Line<'a> {
    kind: &'a str,
    text: &'a str,
    process: u32,
    command: &'a str,
    /// The line to look at: the innermost one of the first stack that is not in a header of libibverbs.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a Place>,
    /// What was found at the other end of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_end: Option<&'a str>,
    /// It does not change the exit code: the process failed, perhaps for another reason.
    failed: bool,
    stacks: &'a [Named],
}

impl Report {
    pub(super) fn new(
        output: Box<dyn Write>,
        path: Option<PathBuf>,
        json: bool,
        suppressions: Suppressions,
    ) -> Self {
        Self {
            output,
            path,
            json,
            suppressions,
            symbols: Symbols::default(),
            printed: HashSet::new(),
            connections: Vec::new(),
            suppressed: 0,
            faulty: HashSet::new(),
            failed: Vec::new(),
            repeated: 0,
            lacks_lines: false,
        }
    }

    /// Takes a finding.
    pub(super) fn finding(&mut self, finding: Finding) -> Outcome {
        if finding.failed.is_some() {
            self.failed.push(finding);
            return Ok(());
        }
        self.faulty.insert(finding.process);
        self.print(&finding)
    }

    /// Prints a finding that was not printed before.
    fn print(&mut self, finding: &Finding) -> Outcome {
        let Some(stacks) = self.stacks(finding) else { return Ok(()) };
        // One line makes one mistake, wherever it was noticed; what needs two lines is one for each pair.
        let count = if finding.kind.is_of_two() { usize::MAX } else { 1 };
        let places: Vec<&Vec<Place>> = stacks.iter().take(count).map(|stack| &stack.frames).collect();
        if !self.printed.insert(format!("{:?} {places:?}", finding.kind)) {
            self.repeated += 1;
            return Ok(());
        }
        let mut frames = stacks.iter().flat_map(|stack| &stack.frames);
        self.lacks_lines |= frames.any(|place| place.function == "main" && place.line.is_none());
        let other = self.other_end(finding);
        let text = if self.json {
            json(finding, &stacks, other.as_deref())?
        } else {
            text(finding, &stacks, other.as_deref())
        };
        self.put(&text)
    }

    /// The stacks of a finding with names, unless it is suppressed.
    fn stacks(&mut self, finding: &Finding) -> Option<Vec<Named>> {
        let stacks: Vec<Named> = finding.stacks.iter().map(|stack| self.named(stack)).collect();
        let functions = stacks.iter().flat_map(|stack| &stack.frames).map(|place| place.function.as_str());
        let is_suppressed = self.suppressions.names(finding.kind.name(), functions);
        self.suppressed += usize::from(is_suppressed);
        (!is_suppressed).then_some(stacks)
    }

    /// Writes text. If the file refuses it, a full disk for example, this and what follows goes to standard
    /// error, and the exit code still says that something was found.
    fn put(&mut self, text: &str) -> Outcome {
        let written = self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush());
        let Err(error) = written else { return Ok(()) };
        let Some(path) = self.path.take() else { return Err(error).during("the findings") };
        say!("roxie: {}: {error}; further findings are here:", path.display());
        self.output = Box::new(Stream::Stderr);
        self.output.write_all(text.as_bytes()).during("the findings")
    }

    /// What was found at the other end of the same connection.
    fn other_end(&mut self, finding: &Finding) -> Option<String> {
        let (qp, peer) = finding.ends?;
        let found =
            self.connections.iter().find(|(ends, _)| *ends == (peer, qp)).map(|(_, says)| says.clone());
        let says = format!(
            "process {}: {}: {}",
            number(finding.process),
            finding.kind.name(),
            first_sentence(&finding.text)
        );
        self.connections.push(((qp, peer), says));
        found
    }

    fn named(&mut self, stack: &Stack) -> Named {
        let frames = stack.frames.iter().flat_map(|(file, address)| self.symbols.find(file, *address));
        let mut frames: Vec<Place> = frames.collect();
        // What called main belongs to the C library.
        if let Some(main) = frames.iter().rposition(|place| place.function == "main") {
            frames.truncate(main + 1);
        }
        let process = stack.process.map(number);
        Named { what: stack.what.clone(), process, thread: stack.thread.clone(), frames }
    }

    /// Prints the rest and the sums; returns the number of findings that change the exit code: a program that
    /// fails has its own. If the command `has_failed`, also what processes waited for that a signal ended.
    pub(super) fn end(&mut self, processes: usize, has_failed: bool) -> Outcome<usize> {
        let counted = self.printed.len();
        let mut left: BTreeMap<&str, usize> = BTreeMap::new();
        for finding in mem::take(&mut self.failed) {
            let is_alone = self.faulty.iter().all(|process| *process == finding.process);
            match finding.failed {
                Some(Failed::Signal) if !has_failed || !is_alone => {}
                Some(Failed::Exit | Failed::Signal) if is_alone => self.print(&finding)?,
                _ if self.stacks(&finding).is_some() => *left.entry(finding.kind.name()).or_default() += 1,
                _ => {}
            }
        }
        if self.json {
            return Ok(counted);
        }
        let found = self.printed.len();
        let unused: Vec<String> = self.suppressions.unused().collect();
        let mut text = String::new();
        if !left.is_empty() {
            let kinds: Vec<String> = left.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
            let kinds = kinds.join(", ");
            text +=
                &format!("roxie check: processes that failed have also, perhaps because of that: {kinds}\n");
        }
        if found > 0 || self.suppressed > 0 {
            let repeated = match self.repeated {
                0 => String::new(),
                count => format!(", {count} repeated"),
            };
            let s = |count: usize| if count == 1 { "" } else { "s" };
            text += &format!(
                "roxie check: {found} finding{}{repeated}, {} suppressed, in {processes} process{}\n",
                s(found),
                self.suppressed,
                if processes == 1 { "" } else { "es" }
            );
        }
        if self.lacks_lines {
            text += "roxie check: for files and lines, compile the program with -g\n";
        }
        for rule in unused {
            text += &format!("roxie check: unused suppression {}\n", Printable(&rule));
        }
        self.put(&text)?;
        Ok(counted)
    }
}

/// The line to look at.
fn place(stacks: &[Named]) -> Option<&Place> {
    let frames = &stacks.first()?.frames;
    frames.iter().find(|place| place.line.is_some() && !place.is_header()).or(frames.first())
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first)
}

fn json(finding: &Finding, stacks: &[Named], other_end: Option<&str>) -> Outcome<String> {
    let Finding { kind, text, process, command, failed, .. } = finding;
    let (kind, process, place, failed) = (kind.name(), number(*process), place(stacks), failed.is_some());
    let line = Line { kind, text, process, command, place, other_end, failed, stacks };
    Ok(paint::json(&serde_json::to_string(&line).during("a finding")?).into_owned() + "\n")
}

fn text(finding: &Finding, stacks: &[Named], other_end: Option<&str>) -> String {
    let mut text = String::new();
    // What the processes and the debug information of the command say begins no line.
    let mut line = |words: String| text += &format!("{}\n", Printable(&words));
    line(format!("roxie check: {}: {}", finding.kind.name(), finding.text));
    if let Some(other) = other_end {
        line(format!("    the other end, {other}"));
    }
    for Named { what, process, thread, frames } in stacks {
        let process = process.unwrap_or(number(finding.process));
        line(format!("    {what} by {thread} of process {process}:"));
        for (index, Place { function, file, line: at_line }) in frames.iter().enumerate() {
            let at = match (file, at_line) {
                (Some(file), Some(number)) => format!("  {file}:{number}"),
                (Some(file), None) => format!("  {file}"),
                _ => String::new(),
            };
            line(format!("      #{index} {function}{at}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;
    use std::rc::Rc;

    use roxie::finding::FindingKind;

    use super::*;

    #[derive(Clone, Default)]
    struct Output(Rc<RefCell<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is printed of findings of these processes, and how many of them count.
    fn reported(findings: &[(u32, FindingKind, Option<Failed>)], has_failed: bool) -> (usize, String) {
        let output = Output::default();
        let none = Suppressions::read(&[]).expect("there are none");
        let mut report = Report::new(Box::new(output.clone()), None, false, none);
        for (process, kind, failed) in findings.iter().copied() {
            let (text, command) = ("text".to_owned(), String::new());
            let finding = Finding { kind, text, stacks: Vec::new(), ends: None, failed, process, command };
            report.finding(finding).expect("printed");
        }
        let counted = report.end(2, has_failed).expect("printed");
        (counted, String::from_utf8(output.0.take()).expect("text"))
    }

    #[test]
    fn what_a_failed_process_left_is_told_whatever_else_was_found() {
        use FindingKind::{BadLkey, Hang, LeakedMr};
        let alone = [(1, LeakedMr, Some(Failed::Exit))];
        let (counted, text) = reported(&alone, true);
        assert_eq!((counted, text.contains("roxie check: leaked-mr: text")), (0, true), "{text}");
        let beside = [(1, BadLkey, None), (1, LeakedMr, Some(Failed::Beside))];
        let other = [(1, BadLkey, None), (2, LeakedMr, Some(Failed::Exit))];
        for findings in [beside, other] {
            let (counted, text) = reported(&findings, true);
            let line =
                "roxie check: processes that failed have also, perhaps because of that: leaked-mr (1)\n";
            assert_eq!((counted, text.contains(line)), (1, true), "{text}");
        }
        let ended = [(1, Hang, Some(Failed::Signal))];
        assert_eq!(reported(&ended, false), (0, String::new()));
        assert!(reported(&ended, true).1.contains("roxie check: hang: text"));
    }
}
