//! Colour and progress, only where a person looks: never into a pipe, a file, or under `NO_COLOR`.

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
    /// Looks at standard output and the environment.
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
            // A terminal that went away is found out by the next real line.
            let _ = std::io::stdout().flush();
        }
    }

    /// Takes the progress away.
    pub fn progress_done(self) {
        if self.live {
            print!("\r\x1b[K");
        }
    }

    /// Prints a line, in place of any progress.
    pub fn line(self, text: &str) {
        let clear = if self.live { "\r\x1b[K" } else { "" };
        let mut out = std::io::stdout().lock();
        if let Err(error) = writeln!(out, "{clear}{text}").and_then(|()| out.flush()) {
            give_up(&error);
        }
    }
}

/// How far something is, on standard error: the result on standard output may be for a file, a pipe or a pager.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    live: bool,
}

impl Progress {
    /// Nothing is shown unless a person looks at standard error.
    pub fn stderr() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self { live: std::io::stderr().is_terminal() && !dumb }
    }

    /// Shows it; the next one replaces it.
    pub fn show(self, text: &str) {
        if self.live {
            // Who has closed standard error does not want to know.
            let _ = write!(std::io::stderr(), "\r\x1b[K  {text}");
        }
    }

    /// Takes it away.
    pub fn done(self) {
        if self.live {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Prints a line for programs, JSON or shell, as it is.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        give_up(&error);
    }
}

/// Exit code if the output cannot be written; 1 may be a result (`roxie sim`, `capture analyse`).
const NOT_WRITTEN: i32 = 2;

/// Ends as other programs do: silently, as if by SIGPIPE, when the reader closed the pipe, since nobody is left to talk to.
pub fn give_up(error: &std::io::Error) -> ! {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(141);
    }
    eprintln!("roxie: writing output: {error}");
    std::process::exit(NOT_WRITTEN);
}
