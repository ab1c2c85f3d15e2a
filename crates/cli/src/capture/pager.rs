//! Writes text to standard output, through a pager if that is a terminal.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};

use roxie_capture::paint::{self, Colours};

use crate::terminal::{self, Terminal};

/// Bytes of text that are written at once, as by `BufWriter`. The search for characters that control a
/// terminal takes longer in short texts: line by line, `capture read` took 4 % more time.
const CHUNK: usize = 8 << 10;

/// Standard output, or a pager in front of it.
pub(super) struct Output {
    writer: Option<Box<dyn Write>>,
    pager: Option<Child>,
    is_json: bool,
    colours: Colours,
    /// Text that is not written yet.
    text: String,
}

impl Output {
    /// Starts `$PAGER` or `less` if `paged`, unless standard output is not a terminal or the
    /// variable is empty or `cat`.
    pub(super) fn new(paged: bool, is_json: bool) -> Self {
        let pager = if paged && terminal::is_stdout() { start() } else { None };
        let (stdin, pager) = pager.map_or((None, None), |mut child| (child.stdin.take(), Some(child)));
        let writer: Box<dyn Write> = match stdin {
            Some(stdin) => Box::new(stdin),
            None => Box::new(terminal::data()),
        };
        let colours = Terminal::stdout().colours();
        Self { writer: Some(writer), pager, is_json, colours, text: String::new() }
    }

    /// Writes text; returns `false` if the reader has closed the pipe.
    pub(super) fn write(&mut self, text: &str) -> io::Result<bool> {
        self.append(|out| out.push_str(text))
    }

    /// Writes the text that `add` appends; returns as [`Output::write`].
    pub(super) fn append(&mut self, add: impl FnOnce(&mut String)) -> io::Result<bool> {
        add(&mut self.text);
        if self.text.len() < CHUNK { Ok(true) } else { self.flush() }
    }

    /// Passes everything written so far to the reader; returns `false` if the reader has closed the pipe.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        let shown = if self.is_json { paint::json(&self.text) } else { self.colours.lines(&self.text) };
        let written = writer.write_all(shown.as_bytes()).and_then(|()| writer.flush());
        self.text.clear();
        is_read(written)
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

impl Drop for Output {
    fn drop(&mut self) {
        // After a failure, which is reported, the text before it is shown.
        let _ = self.flush();
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
    let command = std::env::var_os("PAGER").unwrap_or_else(|| "less".into()).to_string_lossy().into_owned();
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
