//! What is said on standard error, and the files by which the programs of one `roxie run` know what was said.
//!
//! The directory is named `run-PID-RANDOM`, after the process that became the command. That process holds a
//! lock on it, by which others see that it lives. `opened` exists when a program has opened the device
//! (`ibv_open_device`), `redirected` when a redirection was said. `loaded-0`, `loaded-1` and so on are
//! symbolic links to the names of loaded libraries: a file with contents would be subject to
//! the limit of file sizes (ulimit -f). The target of `namespace` is the PID namespace of the command.

use crate::kernel;
use crate::names::{Library, base_name, is_of_rdma};
use crate::text::Text;

/// Loaded libraries that are recorded at most.
const LOADED_MAX: u8 = 10;
/// Longest list of them, in bytes.
const LIST: usize = 512;

/// The directory, and the name of this program.
pub(crate) struct Report {
    dir: Text<1024>,
    program: Text<256>,
    /// This process became the command.
    is_of_command: bool,
    /// `ROXIE_QUIET` is in the environment and not `0`.
    pub(crate) is_quiet: bool,
}

impl Report {
    pub(crate) const fn new() -> Self {
        Self { dir: Text::new(), program: Text::new(), is_of_command: false, is_quiet: false }
    }

    pub(crate) fn name(&mut self, program: &[u8]) {
        self.program.set(&[program]);
    }

    pub(crate) fn begin(&mut self, dir: &[u8]) {
        self.dir.set(&[dir]);
        if let Some(dir) = self.path(b"\0").filter(|_| self.is_of_this_process()) {
            let has_lock = kernel::lock(dir.bytes());
            self.is_of_command = self.is_of_this_namespace().unwrap_or(has_lock);
        }
    }

    /// Whether the command is in the PID namespace of this process; `None` without /proc. The command itself
    /// is the first to look, and the programs that it executes are others.
    fn is_of_this_namespace(&self) -> Option<bool> {
        let mut own = [0; 64];
        let own = kernel::target(b"/proc/self/ns/pid\0", &mut own)?;
        let link = self.path(b"/namespace\0")?;
        let (mut target, mut known) = (Text::<65>::new(), [0; 64]);
        target.set(&[own, b"\0"]);
        Some(
            kernel::link(target.bytes(), link.bytes())
                || kernel::target(link.bytes(), &mut known) == Some(own),
        )
    }

    /// Says that this program does without the device.
    pub(crate) fn short_of_memory(&self) {
        if !self.is_quiet {
            let why =
                b" cannot use the device: the limits of memory (ulimit -v, -d) are too low for roxie's \
                        libraries (raise the limits: ulimit -v unlimited, ulimit -d unlimited)\n";
            say(&[self.program.bytes(), why]);
        }
    }

    /// Says, once for the whole run, that `by` gets roxie's library in place of `wanted`.
    pub(crate) fn redirected(&self, wanted: &[u8], by: Option<&[u8]>, ours: &[u8]) {
        let Some(path) = self.path(b"/redirected\0") else { return };
        if !kernel::create_new(path.bytes()) {
            return;
        }
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
        if self.dir.bytes().is_empty() || !is_of_rdma(name) {
            return;
        }
        let mut target = Text::<256>::new();
        target.set(&[name, b"\0"]);
        for number in 0..LOADED_MAX {
            let Some(link) = self.numbered(number) else { return };
            let mut known = [0; 256];
            if kernel::link(target.bytes(), link.bytes())
                || kernel::target(link.bytes(), &mut known) == Some(name)
            {
                return;
            }
        }
    }

    /// At the end of the process that `roxie run` became: says so if the device was not opened, and removes
    /// the directory.
    pub(crate) fn end(&self) {
        // A forked child is another process.
        if !self.is_of_command || !self.is_of_this_process() {
            return;
        }
        let (Some(opened), Some(dir)) = (self.path(b"/opened\0"), self.path(b"\0")) else { return };
        // Another user, after su(1), may not look. A process that does not see this one may have removed the
        // directory.
        if kernel::is_missing(opened.bytes()) && !kernel::is_missing(dir.bytes()) {
            self.say_unused();
        }
        let links = (0..LOADED_MAX).filter_map(|number| self.numbered(number));
        let named = [Some(opened), self.path(b"/redirected\0"), self.path(b"/namespace\0")];
        let files = named.into_iter().flatten().chain(links);
        files.for_each(|path| kernel::remove(path.bytes(), false));
        kernel::remove(dir.bytes(), true);
    }

    fn say_unused(&self) {
        let mut shown = Text::<LIST>::new();
        let mut has_verbs = false;
        for link in (0..LOADED_MAX).map_while(|number| self.numbered(number)) {
            let mut name = [0; 256];
            let Some(name) = kernel::target(link.bytes(), &mut name) else { break };
            has_verbs |= Library::of(name) == Some(Library::Ibverbs);
            let separator: &[u8] = if shown.bytes().is_empty() { b"" } else { b", " };
            if !shown.push(separator) || !shown.push(name) {
                break;
            }
        }
        let (shown, rest): (&[u8], &[u8]) = match (shown.bytes(), has_verbs) {
            ([], _) => (b"no RDMA library", b""),
            (shown, true) => (shown, b", and opened none of roxie's devices ('roxie devinfo' lists them)"),
            (shown, false) => (shown, b", and no libibverbs"),
        };
        say(&[self.program.bytes(), b" did not use RDMA: it loaded ", shown, rest, b"\n"]);
    }

    /// True in the process after which the directory is named, and in those of other PID namespaces that have
    /// its number.
    fn is_of_this_process(&self) -> bool {
        let Some(name) = base_name(self.dir.bytes()).strip_prefix(b"run-") else { return false };
        let Some(digits) = name.split(|byte| *byte == b'-').next() else { return false };
        let digit =
            |sum: u32, byte: &u8| sum.wrapping_mul(10).wrapping_add(u32::from(byte.wrapping_sub(b'0')));
        digits.iter().fold(0, digit) == kernel::process_id()
    }

    /// The path of a link in the list of loaded libraries.
    fn numbered(&self, number: u8) -> Option<Text<1056>> {
        self.path(&[b'/', b'l', b'o', b'a', b'd', b'e', b'd', b'-', b'0' + number, 0])
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
        line.make_printable();
        kernel::say(line.bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use super::*;

    /// The directory of a run that this process became, below the temporary directory.
    fn directory(name: &str) -> PathBuf {
        let base = std::env::temp_dir().join(format!("roxie-audit-{}-{name}", std::process::id()));
        let dir = base.join(format!("run-{}-00000000000000aa", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the test");
        dir
    }

    fn report(dir: &Path) -> Report {
        let mut report = Report::new();
        report.name(b"test");
        report.begin(dir.as_os_str().as_bytes());
        report
    }

    #[test]
    fn a_run_ends_with_the_process_of_its_name_and_namespace() {
        let dir = directory("namespace");
        // A program that this process executes finds what the command has left.
        let (command, executed) = (report(&dir), report(&dir));
        assert!(command.is_of_command && executed.is_of_command);
        fs::remove_file(dir.join("namespace")).expect("the command has made it");
        std::os::unix::fs::symlink("pid:[1]", dir.join("namespace")).expect("a link");
        let of_other_namespace = report(&dir);
        assert!(of_other_namespace.is_of_this_process() && !of_other_namespace.is_of_command);
        of_other_namespace.end();
        assert!(dir.exists());
        command.end();
        assert!(!dir.exists());
        assert!(!report(Path::new("/nonexistent/run-1-00000000000000aa")).is_of_command);
        assert!(Report::new().path(b"/opened\0").is_none());
        fs::remove_dir(dir.parent().expect("a directory")).expect("cleaned");
    }

    #[test]
    fn the_directory_of_a_running_command_is_locked() {
        let dir = directory("lock");
        let _report = report(&dir);
        let other = fs::File::open(&dir).expect("a directory");
        assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
        fs::remove_dir_all(dir.parent().expect("a directory")).expect("cleaned");
    }

    #[test]
    fn loaded_libraries_are_links_in_the_order_of_their_loading() {
        let dir = directory("loaded");
        let report = report(&dir);
        for path in ["/x/librdmacm.so.1", "/x/libibverbs.so.1", "/y/librdmacm.so.1", "/x/libc.so.6"] {
            report.loaded(path.as_bytes());
        }
        let target = |name: &str| fs::read_link(dir.join(name)).ok();
        let targets = ["loaded-0", "loaded-1", "loaded-2"].map(target);
        assert_eq!(targets, [Some("librdmacm.so.1".into()), Some("libibverbs.so.1".into()), None]);
        report.end();
        fs::remove_dir(dir.parent().expect("a directory")).expect("nothing is left");
    }
}
