//! Standard output and standard error of this program: the only file that writes to them.
//!
//! Text contains names that others chose: of files, interfaces, processes, programs of eBPF objects. So each
//! function writes `\u{...}` in place of characters that control a terminal. Functions that take a line do so
//! for newlines, too: no name can look like a message of roxie. Colours and progress are for terminals; there
//! are none in a pipe, in a file, or with `NO_COLOR`.

use std::fmt::Display;
use std::io::{self, IsTerminal, Stdout, Write};

pub use roxie_capture::paint::Tone;
use roxie_capture::paint::{self, Colours};
use serde::Serialize;

use crate::failure::{During, Outcome};

/// Erases the line with the progress.
const CLEAR: &str = "\r\x1b[K";

/// Standard output as a person or a program sees it.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    colour: bool,
    live: bool,
}

impl Terminal {
    /// Checks standard output and the environment.
    pub fn stdout() -> Self {
        let live = is_live(&io::stdout());
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Self { colour: live && !plain, live }
    }

    /// Neither colours nor progress.
    #[must_use]
    pub fn plain() -> Self {
        Self { colour: false, live: false }
    }

    /// Whether text on standard output is coloured.
    #[must_use]
    pub fn colours(self) -> Colours {
        if self.colour { Colours::Ansi } else { Colours::None }
    }

    /// `text`, coloured if colours are wanted.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        self.colours().paint(tone, text)
    }

    /// Shows what is being done now; the next line replaces it. Nothing in a pipe.
    pub fn progress(self, text: &str) {
        if self.live {
            // A terminal that was closed is noticed at the next line.
            let _ = put(&mut io::stdout(), &format!("{CLEAR}  {}", Colours::None.line(text)));
        }
    }

    /// Removes the progress line.
    pub fn progress_done(self) {
        if self.live {
            let _ = put(&mut io::stdout(), CLEAR);
        }
    }

    /// Prints the heading of further lines.
    pub fn heading(self, text: &str) {
        self.line(&self.paint(Tone::Strong, text));
    }

    /// Prints a line, in place of the progress line.
    pub fn line(self, text: &str) {
        let clear = if self.live { CLEAR } else { "" };
        written(put(&mut io::stdout(), &format!("{clear}{}\n", self.colours().line(text))));
    }
}

/// Progress on standard error, because the result on standard output may go to a file, pipe or pager.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    live: bool,
}

impl Progress {
    /// Shows nothing unless standard error is a terminal.
    pub fn stderr() -> Self {
        Self { live: is_live(&io::stderr()) }
    }

    /// Shows the progress; the next call replaces it.
    pub fn show(self, text: &str) {
        if self.live {
            // An error is ignored: standard error may be closed.
            let _ = put(&mut io::stderr(), &format!("{CLEAR}  {}", Colours::None.line(text)));
        }
    }

    /// Removes the progress line.
    pub fn done(self) {
        if self.live {
            let _ = put(&mut io::stderr(), CLEAR);
        }
    }
}

/// Joins parts by `separator` into lines of at most `width` characters; no part is split.
pub fn wrap(parts: impl IntoIterator<Item = impl AsRef<str>>, separator: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let part = part.as_ref();
        let added = separator.chars().count() + part.chars().count();
        match lines.last_mut() {
            Some(line) if line.chars().count() + added <= width => {
                line.push_str(separator);
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// Prints a line.
pub fn print(text: &str) {
    Terminal::plain().line(text);
}

/// Prints a text of several lines. Names in it have no newlines: they went through [`roxie::printable`].
pub fn print_lines(text: &str) {
    written(put(&mut io::stdout(), &format!("{}\n", Colours::None.lines(text.trim_end()))));
}

/// Prints JSON for programs.
pub fn json(value: &impl Display) {
    written(put(&mut io::stdout(), &format!("{}\n", paint::json(&value.to_string()))));
}

/// Prints JSON for programs and people, on several lines.
pub fn json_lines(value: &impl Serialize) -> Outcome {
    json(&serde_json::to_string_pretty(value).during("JSON")?);
    Ok(())
}

/// Prints a line on standard error; the arguments are those of `format!`.
macro_rules! say {
    ($($words:tt)*) => { $crate::terminal::say(&format!($($words)*)) };
}

/// Prints a line on standard error.
pub fn say(line: &str) {
    // A failed write cannot be reported.
    let _ = put(&mut io::stderr(), &format!("{}\n", Colours::None.line(line)));
}

/// A stream for text of several lines. Names in it are as in [`print_lines`].
#[derive(Clone, Copy, Debug)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let shown = Colours::None.lines(&text);
        match self {
            Self::Stdout => put(&mut io::stdout(), &shown)?,
            Self::Stderr => put(&mut io::stderr(), &shown)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard output for bytes that are no text for people: capture files, and what another process of roxie
/// reads.
pub fn data() -> Stdout {
    io::stdout()
}

/// Prints what the parser of the command line has to say: help, the version, or an error.
pub fn print_of_parser(error: &clap::Error) {
    written(error.print().and_then(|()| io::stdout().flush()));
}

/// Whether standard output is a terminal.
pub fn is_stdout() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is a terminal.
pub fn is_stderr() -> bool {
    io::stderr().is_terminal()
}

fn is_live(output: &impl IsTerminal) -> bool {
    output.is_terminal() && std::env::var_os("TERM").is_none_or(|v| v != "dumb")
}

fn put(output: &mut impl Write, text: &str) -> io::Result<()> {
    output.write_all(text.as_bytes()).and_then(|()| output.flush())
}

/// Exit code if the output cannot be written; 1 is a result of `roxie sim` and `capture analyse`.
const NOT_WRITTEN: i32 = 2;

/// Ends the process after a failed write to standard output.
pub fn written(result: io::Result<()>) {
    if let Err(error) = result {
        give_up(&error);
    }
}

/// Ends the process after a failed write. If the reader closed the pipe, it ends silently, as SIGPIPE
/// would.
pub fn give_up(error: &io::Error) -> ! {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(141);
    }
    say!("roxie: writing output: {error}");
    std::process::exit(NOT_WRITTEN);
}
