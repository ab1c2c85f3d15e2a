//! Writes text to standard output, through a pager if that is a terminal.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, Command, Stdio};

/// Standard output, or a pager in front of it.
pub(super) struct Output {
    writer: Option<BufWriter<Box<dyn Write>>>,
    pager: Option<Child>,
}

impl Output {
    /// Starts `$ROXIE_PAGER`, `$PAGER` or `less` if `paged`, unless standard output is not a terminal or the
    /// variable is empty or `cat`.
    pub(super) fn new(paged: bool) -> Self {
        let pager = if paged && io::stdout().is_terminal() { start() } else { None };
        let Some(mut child) = pager else {
            return Self { writer: Some(BufWriter::new(Box::new(io::stdout()))), pager: None };
        };
        let writer: Box<dyn Write> = match child.stdin.take() {
            Some(stdin) => Box::new(stdin),
            None => Box::new(io::stdout()),
        };
        Self { writer: Some(BufWriter::new(writer)), pager: Some(child) }
    }

    /// Writes text; returns `false` if the reader has closed the pipe.
    pub(super) fn write(&mut self, text: &str) -> io::Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        is_read(writer.write_all(text.as_bytes()))
    }

    /// Passes everything written so far to the reader; returns `false` if the reader has closed the pipe.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        is_read(writer.flush())
    }

    /// Waits until the user ends the pager.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        // The pager ends when its input does.
        self.writer = None;
        if let Some(mut pager) = self.pager.take() {
            pager.wait()?;
        }
        Ok(())
    }
}

fn is_read(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

fn start() -> Option<Child> {
    let chosen = ["ROXIE_PAGER", "PAGER"].iter().find_map(std::env::var_os);
    let command = chosen.map_or_else(|| "less".to_owned(), |c| c.to_string_lossy().into_owned());
    if command.trim().is_empty() || command.trim() == "cat" {
        return None;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).stdin(Stdio::piped());
    // Like git: quit if the text fits on the screen, keep colours, do not clear the screen.
    if std::env::var_os("LESS").is_none() {
        shell.env("LESS", "FRX");
    }
    shell.spawn().ok()
}
