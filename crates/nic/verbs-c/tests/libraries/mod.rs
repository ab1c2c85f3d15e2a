//! Finds the libraries under test.

use std::env;
use std::path::PathBuf;

/// Returns the path of a library: in `ROXIE_BIN_DIR`, as for the programs of `tests/`, or else in the
/// directory that this test was built into; `None` after printing that it is missing.
pub(crate) fn built(file: &str) -> Option<PathBuf> {
    let given = env::var_os("ROXIE_BIN_DIR").map(PathBuf::from);
    let dir = given.clone().or_else(|| Some(env::current_exe().ok()?.parent()?.parent()?.to_owned()))?;
    let library = dir.join(file);
    if library.exists() {
        return Some(library);
    }
    assert!(given.is_none(), "ROXIE_BIN_DIR has no {file}");
    println!("skipped: needs cargo build of {file} first");
    None
}
