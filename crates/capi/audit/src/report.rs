//! What is said on standard error, and the files by which the programs of one `roxie run` know what was said.
//!
//! The directory is named `run-PID`, after the process that became the command. `opened` exists when a
//! program has opened the device (`ibv_open_device`), `redirected` when a redirection was said, `loaded` has
//! the names of loaded libraries, one per line.

use crate::kernel::{self, Create};
use crate::names::{Library, base_name, is_of_rdma};
use crate::text::Text;

/// Longest list of loaded libraries, in bytes.
const LIST: usize = 512;

/// The directory, and the name of this program.
pub(crate) struct Report {
    dir: Text<1024>,
    program: Text<256>,
}

impl Report {
    pub(crate) const fn new() -> Self {
        Self { dir: Text::new(), program: Text::new() }
    }

    pub(crate) fn begin(&mut self, dir: &[u8], program: &[u8]) {
        self.dir.set(&[dir]);
        self.program.set(&[program]);
    }

    /// Says, once for the whole run, that `by` gets roxie's library in place of `wanted`.
    pub(crate) fn redirected(&self, wanted: &[u8], by: Option<&[u8]>, ours: &[u8]) {
        let Some(path) = self.path(b"/redirected\0") else { return };
        let Some(file) = kernel::open(path.bytes(), Create::New) else { return };
        kernel::close(file);
        let by = base_name(by.unwrap_or(self.program.bytes()));
        say(&[
            base_name(wanted),
            b", which ",
            by,
            b" loads, is replaced by roxie's ",
            base_name(ours),
            b"\n",
        ]);
    }

    /// Records a library that the program has loaded, if it concerns RDMA.
    pub(crate) fn loaded(&self, path: &[u8]) {
        let name = base_name(path);
        let Some(file) = self.path(b"/loaded\0").filter(|_| is_of_rdma(name)) else { return };
        let mut list = [0; LIST];
        if lines(read(file.bytes(), &mut list)).any(|line| line == name) {
            return;
        }
        let mut line = Text::<256>::new();
        line.set(&[name, b"\n"]);
        if let Some(file) = kernel::open(file.bytes(), Create::Append) {
            kernel::write(file, line.bytes());
            kernel::close(file);
        }
    }

    /// At the end of the process that `roxie run` became: says so if the device was not opened, and removes
    /// the directory.
    pub(crate) fn end(&self) {
        if !self.is_of_this_process() {
            return;
        }
        let (opened, loaded) = (self.path(b"/opened\0"), self.path(b"/loaded\0"));
        let (Some(opened), Some(loaded), Some(dir)) = (opened, loaded, self.path(b"\0")) else { return };
        // Another user, after su(1), may not look. A process that does not see this one may have removed the
        // directory.
        if kernel::is_missing(opened.bytes()) && !kernel::is_missing(dir.bytes()) {
            self.say_unused(loaded.bytes());
        }
        for file in [&b"/opened\0"[..], b"/loaded\0", b"/redirected\0"] {
            if let Some(path) = self.path(file) {
                kernel::remove(path.bytes(), false);
            }
        }
        kernel::remove(dir.bytes(), true);
    }

    fn say_unused(&self, file: &[u8]) {
        let mut list = [0; LIST];
        let names = read(file, &mut list);
        let mut shown = Text::<LIST>::new();
        for name in lines(names) {
            let separator: &[u8] = if shown.bytes().is_empty() { b"" } else { b", " };
            if !shown.push(separator) || !shown.push(name) {
                break;
            }
        }
        let has_verbs = lines(names).any(|name| Library::of(name) == Some(Library::Ibverbs));
        let (shown, rest): (&[u8], &[u8]) = match (shown.bytes(), has_verbs) {
            ([], _) => (b"no RDMA library", b""),
            (shown, true) => (shown, b", and opened no device (roxie0, or what --name says)"),
            (shown, false) => (shown, b", and no libibverbs"),
        };
        say(&[self.program.bytes(), b" did not use RDMA: it loaded ", shown, rest, b"\n"]);
    }

    /// True in the process after which the directory is named.
    fn is_of_this_process(&self) -> bool {
        let Some(digits) = base_name(self.dir.bytes()).strip_prefix(b"run-") else { return false };
        let digit =
            |sum: u32, byte: &u8| sum.wrapping_mul(10).wrapping_add(u32::from(byte.wrapping_sub(b'0')));
        digits.iter().fold(0, digit) == kernel::process_id()
    }

    /// The path of a file of the directory; `name` has the slash in front and ends with a zero.
    fn path(&self, name: &[u8]) -> Option<Text<1056>> {
        let mut path = Text::new();
        path.set(&[self.dir.bytes(), name]);
        (!self.dir.bytes().is_empty() && !path.bytes().is_empty()).then_some(path)
    }
}

/// One line on standard error, in one write.
fn say(parts: &[&[u8]]) {
    let mut line = Text::<1024>::new();
    let fits = line.push(b"roxie: ") && parts.iter().all(|part| line.push(part));
    if fits {
        kernel::write(2, line.bytes());
    }
}

/// The start of a file; empty if it does not exist.
fn read<'a>(path: &[u8], to: &'a mut [u8]) -> &'a [u8] {
    let Some(file) = kernel::open(path, Create::No) else { return &[] };
    let count = kernel::read(file, to);
    kernel::close(file);
    to.get(..count).unwrap_or_default()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_with_the_process_of_its_name() {
        let mut report = Report::new();
        report.begin(format!("/nonexistent/run-{}", std::process::id()).as_bytes(), b"test");
        assert!(report.is_of_this_process());
        report.begin(b"/nonexistent/run-1", b"test");
        assert!(!report.is_of_this_process());
        assert!(report.path(b"/opened\0").is_some_and(|path| path.bytes() == b"/nonexistent/run-1/opened\0"));
        assert!(Report::new().path(b"/opened\0").is_none());
    }
}
