//! The private directory of this user, and why a directory is not trusted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Once;

use roxie::private_dir::{FULL, PrivateDir, is_full};
use sys::{Dir, Untrusted};

use crate::failure::{Failure, Outcome};

/// Start of the names of directories with links to libraries; a fingerprint of their path follows.
pub(crate) const LINKS_PREFIX: &str = "lib-";

/// The private directory of this user. Says once which directories of the environment are not used for it.
pub(crate) fn base_dir() -> Outcome<PrivateDir> {
    static SAID: Once = Once::new();
    let base = PrivateDir::open().map_err(|error| Failure::new(error.to_string()).hint(error.remedy()))?;
    SAID.call_once(|| {
        for refused in base.refused() {
            roxie::notice(format_args!("{refused}; {} is used", base.dir().path().display()));
        }
    });
    Ok(base)
}

/// The directory `name` of the private directory.
pub(crate) fn private_dir(name: &str) -> Outcome<Dir> {
    base_dir()?.dir().private(OsStr::new(name)).map_err(|why| not_trusted(&why))
}

/// The failure to use a directory that others may control.
pub(crate) fn not_trusted(why: &Untrusted) -> Failure {
    let hint = match why {
        Untrusted::Failed { error, .. } => is_full(error.kind()).then_some(FULL),
        Untrusted::Link { .. } => Some("name the directory that it leads to"),
        Untrusted::Owner { .. }
        | Untrusted::Writable { .. }
        | Untrusted::Open { .. }
        | Untrusted::Fuse { .. } => Some("choose a directory that only you and root can change"),
    };
    Failure::new(why.to_string()).hint_if(hint)
}

/// The name of the directory with the links to the libraries in `dir`.
pub(crate) fn link_dir_name(dir: &Path) -> String {
    format!("{LINKS_PREFIX}{:016x}", fingerprint(dir.as_os_str().as_bytes()))
}

/// FNV-1a hash: two builds, or two hooks, get two directories and do not disturb each other's programs.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}
