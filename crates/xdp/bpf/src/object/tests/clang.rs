//! Builds the programs in `xdp/` for tests if clang is installed.

use std::path::Path;
use std::process::Command;

/// Builds `xdp/NAME.c` for a version of the instruction set (`v1` to `v4`). Returns the object file, or why
/// there is none.
pub(crate) fn build(name: &str, version: &str) -> Result<Vec<u8>, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../xdp");
    build_file(&sources.join(format!("{name}.c")), version)
}

/// Builds a source file.
pub(crate) fn build_file(source: &Path, version: &str) -> Result<Vec<u8>, String> {
    let built = Command::new("clang")
        .args(["-O2", "-g", "-target", "bpf", "-Wno-unused-variable", &format!("-mcpu={version}"), "-c"])
        .arg(source)
        .args(["-o", "-"])
        .output()
        .map_err(|_| "skipped: needs clang".to_owned())?;
    assert!(built.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&built.stderr));
    Ok(built.stdout)
}
