//! Colour and progress for terminals; never in a pipe, in a file, or with `NO_COLOR`.

use std::io::{IsTerminal, Write};

use roxie_capture::paint::Colours;
pub use roxie_capture::paint::Tone;

/// Standard output as a person or a program sees it.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    colour: bool,
    live: bool,
}

impl Terminal {
    /// Checks standard output and the environment.
    pub fn stdout() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        let live = std::io::stdout().is_terminal() && !dumb;
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
            print!("\r\x1b[K  {text}");
            // A terminal that was closed is noticed at the next line.
            let _ = std::io::stdout().flush();
        }
    }

    /// Removes the progress line.
    pub fn progress_done(self) {
        if self.live {
            print!("\r\x1b[K");
        }
    }

    /// Prints a line, in place of the progress line.
    pub fn line(self, text: &str) {
        let clear = if self.live { "\r\x1b[K" } else { "" };
        let mut out = std::io::stdout().lock();
        if let Err(error) = writeln!(out, "{clear}{text}").and_then(|()| out.flush()) {
            give_up(&error);
        }
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
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self { live: std::io::stderr().is_terminal() && !dumb }
    }

    /// Shows the progress; the next call replaces it.
    pub fn show(self, text: &str) {
        if self.live {
            // An error is ignored: standard error may be closed.
            let _ = write!(std::io::stderr(), "\r\x1b[K  {text}");
        }
    }

    /// Removes the progress line.
    pub fn done(self) {
        if self.live {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
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

/// Prints a line for programs, JSON or shell commands, without changes.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        give_up(&error);
    }
}

/// Exit code if the output cannot be written; 1 is a result of `roxie sim` and `capture analyse`.
const NOT_WRITTEN: i32 = 2;

/// Ends the process after a failed write. If the reader closed the pipe, it ends silently, as SIGPIPE
/// would.
pub fn give_up(error: &std::io::Error) -> ! {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(141);
    }
    eprintln!("roxie: writing output: {error}");
    std::process::exit(NOT_WRITTEN);
}
