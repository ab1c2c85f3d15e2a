//! Starts the program `rdma` of iproute2 anew, with libroxie_preload.so in `LD_PRELOAD`.
//!
//! `rdma` asks the kernel by netlink and loads no verbs library. A program counts as this one if its name is
//! `rdma` and it is linked to libmnl. The loader has read `LD_PRELOAD` before it asks this library, so the
//! program is executed a second time, before any of its code has run.

use core::ffi::c_char;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::kernel;
use crate::names::{self, base_name};
use crate::text::Text;

const PROGRAM: &[u8] = b"rdma";
/// Start of the name of the library to which iproute2 links its programs that speak netlink.
const LIBRARY: &[u8] = b"libmnl.so";
const PRELOAD: &[u8] = b"/libroxie_preload.so";
const VARIABLE: &[u8] = b"LD_PRELOAD=";

/// What the second start needs.
struct Main {
    argv: *const *const c_char,
    envp: *const *const c_char,
    /// The directory of roxie's libraries.
    dir: &'static [u8],
}

/// The program's first start; empty in every other program, and in the second start.
pub(crate) struct Preload {
    main: Option<Main>,
    /// The program's own code runs, or may.
    has_begun: AtomicBool,
}

impl Preload {
    pub(crate) const fn new() -> Self {
        Self { main: None, has_begun: AtomicBool::new(false) }
    }

    /// Prepares the second start, if this program is `rdma`. `dir` has roxie's libraries.
    ///
    /// # Safety
    /// The arrays are those of `main`, with strings that live as long as the process.
    pub(crate) unsafe fn prepare(
        &mut self,
        dir: &'static [u8],
        argv: *const *const c_char,
        envp: *const *const c_char,
    ) {
        // SAFETY: the caller's.
        let program = unsafe { crate::strings(argv) }.next();
        if program.is_some_and(|program| base_name(program) == PROGRAM) && !dir.iter().any(is_end) {
            self.main = Some(Main { argv, envp, dir });
        }
    }

    /// All libraries of the program are loaded: from now on it is not started anew.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Starts the program anew if `wanted` is the library that says what it is, and there is memory for
    /// roxie's libraries. Returns if not, or if the start failed: then the program runs without roxie's
    /// answers.
    pub(crate) fn library(&self, wanted: &[u8], has_memory: impl FnOnce() -> bool) {
        if let Some(main) = &self.main
            && base_name(wanted).starts_with(LIBRARY)
            && !self.has_begun.load(Ordering::Relaxed)
            && has_memory()
        {
            main.execute();
        }
    }
}

impl Main {
    fn execute(&self) {
        let (mut program, mut preload) = (Text::<4096>::new(), Text::<8192>::new());
        // SAFETY: the array of `main`.
        let variables = || unsafe { crate::strings(self.envp) };
        let old = variables().filter_map(|variable| names::value(variable, VARIABLE)).next().unwrap_or(b"");
        if old.split(is_end).any(|entry| entry.ends_with(PRELOAD)) {
            return;
        }
        preload.set(&[VARIABLE, self.dir, PRELOAD, b":", old, b"\0"]);
        // The name stays, which /proc/PID/comm shows: that of /proc/self/exe would be another.
        let mut room = [0; 4096];
        let Some(path) = kernel::target(b"/proc/self/exe\0", &mut room) else { return };
        if is_loader(path) {
            return;
        }
        program.set(&[path, b"\0"]);
        let count = variables().count();
        let Some(array) = kernel::memory((count + 2) * size_of::<*const c_char>()) else { return };
        let array: *mut *const c_char = array.cast();
        let mut at = 0;
        // SAFETY: the array of `main` has `count` strings, and the new one room for two more elements. Its
        // memory is zero, so it ends with NULL.
        unsafe {
            for from in 0..count {
                let variable = *self.envp.add(from);
                if crate::bytes(variable).is_some_and(|text| names::value(text, VARIABLE).is_none()) {
                    *array.add(at) = variable;
                    at += 1;
                }
            }
            *array.add(at) = preload.bytes().as_ptr().cast();
            if !preload.bytes().is_empty() {
                kernel::execute(program.bytes(), self.argv, array);
            }
        }
    }
}

/// Whether this is the dynamic loader, started with the program as its argument. The arguments of `main` are
/// those of the program: a loader that is executed with them takes the first one for the program.
fn is_loader(path: &[u8]) -> bool {
    base_name(path).starts_with(b"ld")
}

/// Whether an entry of `LD_PRELOAD` ends here (ld.so(8)).
fn is_end(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_is_known_by_its_name() {
        for path in ["/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/lib64/ld64.so.2", "/usr/bin/ld.so"] {
            assert!(is_loader(path.as_bytes()), "{path}");
        }
        assert!(!is_loader(b"/usr/sbin/rdma") && !is_loader(b"/opt/ld/rdma"));
    }
}
