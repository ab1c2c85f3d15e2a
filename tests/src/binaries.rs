//! The built `roxie` and its libraries, copied to where every user may read them.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What `cargo build --release` leaves for users.
const FILES: [&str; 3] = ["roxie", "libibverbs.so", "librdmacm.so"];

/// A directory with the binaries; removed with the value.
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
        let dir = std::env::temp_dir().join(format!("roxie-tests-{}", std::process::id()));
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

    /// The `roxie` program.
    #[must_use]
    pub fn roxie(&self) -> PathBuf {
        self.dir.join("roxie")
    }

    /// All of them.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        FILES.map(|file| self.dir.join(file)).into()
    }
}

impl Drop for Binaries {
    fn drop(&mut self) {
        // A leftover copy in the temporary directory harms nobody.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Where a program is along `PATH`.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
