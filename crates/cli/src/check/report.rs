//! Prints findings, with names and lines: as text or JSON, each once.

use std::collections::HashSet;
use std::io::Write;
use std::mem;
use std::path::PathBuf;

use roxie_capture::paint;
use serde::Serialize;
use wire::text::Printable;

use crate::failure::{During, Outcome};
use crate::processes::number;
use crate::terminal::Stream;

use super::findings::{Finding, Stack};
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
    /// What processes that failed did not end: told at the end, unless another process has a finding.
    failed: Vec<Finding>,
    /// Findings that repeat a printed one in another process.
    repeated: usize,
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
        }
    }

    /// Takes a finding.
    pub(super) fn finding(&mut self, finding: Finding) -> Outcome {
        if finding.failed {
            self.failed.push(finding);
            return Ok(());
        }
        self.faulty.insert(finding.process);
        self.print(&finding)
    }

    /// Prints a finding that was not printed before.
    fn print(&mut self, finding: &Finding) -> Outcome {
        let stacks: Vec<Named> = finding.stacks.iter().map(|stack| self.named(stack)).collect();
        let functions = stacks.iter().flat_map(|stack| &stack.frames).map(|place| place.function.as_str());
        if self.suppressions.names(finding.kind.name(), functions) {
            self.suppressed += 1;
            return Ok(());
        }
        // One line makes one mistake, wherever it was noticed; what needs two lines is one for each pair.
        let count = if finding.kind.is_of_two() { usize::MAX } else { 1 };
        let places: Vec<&Vec<Place>> = stacks.iter().take(count).map(|stack| &stack.frames).collect();
        if !self.printed.insert(format!("{:?} {places:?}", finding.kind)) {
            self.repeated += 1;
            return Ok(());
        }
        let other = self.other_end(finding);
        let text = if self.json {
            json(finding, &stacks, other.as_deref())?
        } else {
            text(finding, &stacks, other.as_deref())
        };
        self.put(&text)
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
    /// fails has its own.
    pub(super) fn end(&mut self, processes: usize) -> Outcome<usize> {
        let counted = self.printed.len();
        for finding in mem::take(&mut self.failed) {
            if self.faulty.iter().all(|process| *process == finding.process) {
                self.print(&finding)?;
            }
        }
        if self.json {
            return Ok(counted);
        }
        let found = self.printed.len();
        let unused: Vec<String> = self.suppressions.unused().collect();
        let mut text = String::new();
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
    let Finding { kind, text, process, command, .. } = finding;
    let (kind, process, place) = (kind.name(), number(*process), place(stacks));
    let line = Line { kind, text, process, command, place, other_end, stacks };
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
