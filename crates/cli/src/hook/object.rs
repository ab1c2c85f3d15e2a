//! Programs from object files, by path and name.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use bpf::object::{Candidate, FILE_MAX, Kernel, candidates};
use bpf::{Program, ProgramKind};
use flate2::read::GzDecoder;
use roxie_hook::HookError;

use crate::failure::{During, Failure, Outcome};

/// What object files take from the running kernel. What cannot be read is left out; an error names it if a
/// program needs it.
#[derive(Debug)]
struct KernelFacts {
    types: Option<Vec<u8>>,
    version: Option<u32>,
    config: Option<String>,
}

impl KernelFacts {
    fn read() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let config = format!("/boot/config-{}", release.trim());
        Self {
            types: fs::read("/sys/kernel/btf/vmlinux").ok(),
            version: Kernel::version_of(&release),
            config: compressed_config().or_else(|| fs::read_to_string(config).ok()),
        }
    }
}

/// Returns the contents of `/proc/config.gz`.
fn compressed_config() -> Option<String> {
    let mut text = String::new();
    let file = File::open("/proc/config.gz").ok()?;
    GzDecoder::new(file).take(CONFIG_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Most bytes of a kernel's configuration; those of distributions have some 300 KB.
const CONFIG_MAX: u64 = 4 << 20;

/// Returns the programs of an object file, linked for the running kernel.
pub(crate) fn programs(path: &Path) -> Outcome<Vec<Candidate>> {
    programs_in(&read(path)?, path)
}

/// Reads an object file; of a longer file only so much that it is refused.
fn read(path: &Path) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes));
    read.reading(path).map(|_len| bytes)
}

fn programs_in(bytes: &[u8], path: &Path) -> Outcome<Vec<Candidate>> {
    let facts = KernelFacts::read();
    let (types, config) = (facts.types.as_deref(), facts.config.as_deref());
    let cpus = Some(sys::bpf::possible_cpus() as u32);
    candidates(bytes, &Kernel { types, version: facts.version, config, cpus })
        .during(&path.display().to_string())
}

/// Returns the program that `PATH` or `PATH:PROGRAM` names.
pub(super) fn program(text: &str) -> Outcome<Program> {
    let (path, name) = split(text);
    let file = Path::new(path);
    let bytes = read(file).map_err(|failure| failure.hint(HookError::SYNTAX))?;
    let chosen = choose(programs_in(&bytes, file)?, name).map_err(|programs| {
        Failure::new(format!("{path} has these programs: {}", list(&programs)))
            .hint_if(programs.first().map(|first| format!("name one of them: {path}:{}", first.name)))
    })?;
    chosen.program.during(path)
}

/// Returns the program of this name, or without a name the only one for interfaces. Else all.
fn choose(mut programs: Vec<Candidate>, name: Option<&str>) -> Result<Candidate, Vec<Candidate>> {
    // A program for entries of maps is meant only if it is named: an egress hook is what an entry is to a
    // packet.
    let is_it =
        |one: &Candidate| one.is(None, name) && (name.is_some() || one.kind == Some(ProgramKind::Xdp));
    let mut fitting = programs.iter().enumerate().filter(|(_, program)| is_it(program));
    match (fitting.next().map(|(at, _)| at), fitting.next()) {
        (Some(at), None) => Ok(programs.swap_remove(at)),
        _ => Err(programs),
    }
}

/// Programs with their sections, for messages.
pub(crate) fn list(programs: &[Candidate]) -> String {
    let words: Vec<_> = programs.iter().map(|one| format!("{} ({})", one.name, one.section)).collect();
    words.join(", ")
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

    fn named(name: &str, kind: ProgramKind) -> Candidate {
        let program = Recipe::verdict(XdpAction::Pass).program(name, kind).unwrap();
        Candidate { name: name.to_owned(), section: "xdp".to_owned(), kind: Some(kind), program: Ok(program) }
    }

    #[test]
    fn a_program_is_found_by_name_or_as_the_only_one() {
        let two = || vec![named("a", ProgramKind::Xdp), named("b", ProgramKind::Xdp)];
        assert_eq!(choose(two(), Some("b")).unwrap().name, "b");
        for none in [None, Some("c")] {
            assert_eq!(list(&choose(two(), none).unwrap_err()), "a (xdp), b (xdp)");
        }
        let alone = vec![named("a", ProgramKind::XdpCpumap), named("b", ProgramKind::Xdp)];
        assert_eq!(choose(alone.clone(), None).unwrap().name, "b");
        assert_eq!(choose(alone, Some("a")).unwrap().name, "a");
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
