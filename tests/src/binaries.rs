//! Copies the built `roxie` and its libraries to a directory that every user may read.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The files that `cargo build --release` makes for users.
const FILES: [&str; 5] =
    ["roxie", "libibverbs.so", "librdmacm.so", "libroxie_audit.so", "libroxie_preload.so"];

/// Start of the names of these directories; a process id follows.
const NAME: &str = "roxie-tests-";

/// A directory with the binaries; removed when this is dropped.
#[derive(Debug)]
pub struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// Copies them from `ROXIE_BIN_DIR`, or from the profile directory this test was built into.
    ///
    /// # Errors
    /// `NotFound` if they are not built.
    pub fn copy() -> io::Result<Self> {
        let from = match std::env::var_os("ROXIE_BIN_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => {
                let exe = std::env::current_exe()?;
                exe.ancestors().nth(2).unwrap_or(Path::new("/")).to_owned()
            }
        };
        remove_orphans(&std::env::temp_dir());
        let dir = std::env::temp_dir().join(format!("{NAME}{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        let binaries = Self { dir };
        for file in FILES {
            let (source, target) = (from.join(file), binaries.dir.join(file));
            fs::copy(&source, &target)
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", source.display())))?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
        }
        Ok(binaries)
    }

    /// Path of the `roxie` program.
    #[must_use]
    pub fn roxie(&self) -> PathBuf {
        self.dir.join("roxie")
    }

    /// Paths of all binaries.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        FILES.map(|file| self.dir.join(file)).into()
    }
}

impl Drop for Binaries {
    fn drop(&mut self) {
        // If it fails, the next test removes the directory.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Removes directories of tests that were killed.
fn remove_orphans(temporary: &Path) {
    let is_orphan = |name: &str| {
        name.strip_prefix(NAME)
            .is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    };
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_orphan) {
            // Another test may have removed it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Path of a program found in `PATH`.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_killed_tests_are_removed() {
        let place = std::env::temp_dir().join(format!("roxie-orphans-{}", std::process::id()));
        // 2^22 is the largest process id that there can be (proc_sys_kernel(5)).
        let [gone, ours, other] =
            [(1 << 22) + 1, std::process::id(), 0].map(|pid| place.join(format!("{NAME}{pid}")));
        let other = other.with_file_name("roxie-tests-of-mine");
        for dir in [&gone, &ours, &other] {
            fs::create_dir_all(dir.join("files")).unwrap();
        }
        remove_orphans(&place);
        assert!(!gone.exists() && ours.exists() && other.exists());
        fs::remove_dir_all(&place).unwrap();
    }
}
