//! Runs other programs.

use std::path::Path;
use std::process::Command;

/// Result of a step; the error is a message for people.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// Runs a command; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("{name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}

/// Runs a command and returns what it printed, without the last line break.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Whether a program is in `PATH`.
pub(crate) fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Adds the path to an error.
pub(crate) fn at<T>(path: &Path, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file and makes its directories.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Outcome {
    if let Some(dir) = path.parent() {
        at(dir, std::fs::create_dir_all(dir))?;
    }
    at(path, std::fs::write(path, text))
}
