//! Programs from object files, by path and name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bpf::object::{FILE_MAX, ObjectError, programs_of};
use bpf::{Program, ProgramKind};

use super::HookError;

/// BTF of the running kernel, for programs that adapt to its structures.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Reads the program that `PATH` or `PATH:PROGRAM` names.
pub(super) fn program(text: &str) -> Result<Program, HookError> {
    let (path, name) = split(text);
    let path = PathBuf::from(path);
    let bytes = read(&path).map_err(|error| HookError::File { path: path.clone(), error })?;
    let programs = programs_of(&bytes, None).or_else(|error| match error {
        ObjectError::NeedsKernelTypes => programs_of(&bytes, fs::read(KERNEL_TYPES).ok().as_deref()),
        error => Err(error),
    });
    let programs = programs.map_err(|error| HookError::Object { path: path.clone(), error })?;
    choose(programs, name).map_err(|programs| HookError::Which { path, programs })
}

/// Reads an object file; of a longer file only so much that it is refused.
///
/// # Errors
/// As of `std::fs::read`.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the program of this name, or the only one without a name. Else the names of all.
fn choose(mut programs: Vec<Program>, name: Option<&str>) -> Result<Program, Vec<String>> {
    // Programs for entries of maps get no packets of their own.
    programs.retain(|program| program.kind == ProgramKind::Xdp);
    let is_it = |program: &Program| name.is_none_or(|name| program.name == name);
    let mut fitting = programs.iter().enumerate().filter(|(_, program)| is_it(program));
    match (fitting.next().map(|(at, _)| at), fitting.next()) {
        (Some(at), None) => Ok(programs.swap_remove(at)),
        _ => Err(programs.into_iter().map(|program| program.name).collect()),
    }
}

/// Splits off the program's name. A path may have colons; the text after the last one is a name only if
/// there is no file of the full path.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((path, name)) if !Path::new(text).exists() => (path, Some(name)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::{Recipe, XdpAction};

    fn named(name: &str, kind: ProgramKind) -> Program {
        Recipe::verdict(XdpAction::Pass).program(name, kind).unwrap()
    }

    #[test]
    fn a_program_is_found_by_name_or_as_the_only_one() {
        let two = || vec![named("a", ProgramKind::Xdp), named("b", ProgramKind::Xdp)];
        assert_eq!(choose(two(), Some("b")).unwrap().name, "b");
        assert_eq!(choose(two(), None).unwrap_err(), ["a", "b"]);
        assert_eq!(choose(two(), Some("c")).unwrap_err(), ["a", "b"]);
        let alone = vec![named("a", ProgramKind::XdpCpumap), named("b", ProgramKind::Xdp)];
        assert_eq!(choose(alone, None).unwrap().name, "b");
    }

    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        let error = program("/dev/zero").expect_err("no object file").to_string();
        assert!(error.contains("ELF"), "{error}");
    }

    #[test]
    fn a_colon_separates_the_program_unless_the_file_has_it() {
        assert_eq!(split("dir/x.o:prog"), ("dir/x.o", Some("prog")));
        assert_eq!(split("dir/x.o"), ("dir/x.o", None));
        let file = std::env::temp_dir().join(format!("roxie-colon-{}:x.o", std::process::id()));
        fs::write(&file, b"").unwrap();
        assert_eq!(split(file.to_str().unwrap()), (file.to_str().unwrap(), None));
        fs::remove_file(&file).unwrap();
    }
}
