//! Where text for people goes: through a pager if a person looks, straight out otherwise.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, Command, Stdio};

/// Standard output, or a pager in front of it.
pub(super) struct Output {
    writer: Option<BufWriter<Box<dyn Write>>>,
    pager: Option<Child>,
}

impl Output {
    /// Starts `$ROXIE_PAGER`, `$PAGER` or `less`, unless output is no terminal, the variable is empty or says `cat`.
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

    /// Writes text. `Ok(false)` if nobody reads it any more.
    pub(super) fn write(&mut self, text: &str) -> io::Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        readers_left(writer.write_all(text.as_bytes()))
    }

    /// Lets what was written be seen.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        readers_left(writer.flush())
    }

    /// Waits until the reader has seen enough.
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

fn readers_left(result: io::Result<()>) -> io::Result<bool> {
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
    // As git: end if it fits on the screen, keep colours, leave the text there.
    if std::env::var_os("LESS").is_none() {
        shell.env("LESS", "FRX");
    }
    shell.spawn().ok()
}
