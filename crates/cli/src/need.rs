//! Which commands need device files (`--device-files=auto`).
//!
//! UCX finds no device without them, and neither do programs that look for `/dev/infiniband` themselves. They
//! are programs linked to UCX or MPI, MPI launchers, and Python: its packages load UCX at run time. Tools
//! that show devices read nothing but these files. A command may name its program in any word:
//! `env A=B ucx_perftest`, `sh -c 'cd /x; ./a.out'`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::elf::Elf;
use crate::program::search;

/// A program that is linked to a library with such a name needs the files; names begin with these words.
const LIBRARIES: [&str; 8] =
    ["libucp", "libuct", "libucs", "libmpi.", "libmpich.", "libopen-rte.", "libopen-pal.", "libprrte."];
/// A program with such a name starts others that need the files; names begin with these words.
const LAUNCHERS: [&str; 6] = ["python", "mpirun", "mpiexec", "orterun", "prterun", "ucx_"];
/// A program with such a name reads the files and loads no verbs library: infiniband-diags, and scripts of
/// NIC vendors.
const READERS: [&str; 4] = ["ibstat", "ibstatus", "ibdev2netdev", "show_gids"];
/// A program with such a name shows devices, also if it opens none of them.
const VIEWERS: [&str; 2] = ["ibv_devices", "ibv_devinfo"];
/// Words of a command that are looked at. Programs stand at its beginning.
const WORDS_MAX: usize = 64;

/// True if `command`, or a program that it starts, probably needs device files. `variables` are the names of
/// the environment.
pub(crate) fn device_files(command: &[OsString], mut variables: impl Iterator<Item = OsString>) -> bool {
    variables.any(|name| name.to_string_lossy().starts_with("UCX_"))
        || any_word(command, |word| {
            word.starts_with("UCX_") || is_one_of(word, &READERS) || is_name_of_user(word)
        })
}

/// True if `command` is a tool that shows devices, or starts one.
pub(crate) fn only_shows(command: &[OsString]) -> bool {
    any_word(command, |word| is_one_of(word, &READERS) || is_one_of(word, &VIEWERS))
}

/// True if the program of `command` is linked to a verbs library.
pub(crate) fn verbs(command: &[OsString]) -> bool {
    let elf = command.first().and_then(|program| Elf::read(&search(Path::new(program))?));
    elf.is_some_and(|elf| elf.needed.iter().any(|name| begins(name, &["libibverbs.", "librdmacm."])))
}

fn any_word(command: &[OsString], is_it: impl Fn(&str) -> bool) -> bool {
    let text: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let is_end = |c: char| c.is_whitespace() || ";&|()'\"`".contains(c);
    let words = text.iter().flat_map(|word| word.split(is_end)).filter(|word| !word.is_empty());
    words.take(WORDS_MAX).any(is_it)
}

fn is_one_of(word: &str, names: &[&str]) -> bool {
    Path::new(word).file_name().is_some_and(|name| names.iter().any(|one| *one == name))
}

fn is_name_of_user(word: &str) -> bool {
    if word.starts_with('-') {
        return false;
    }
    search(Path::new(word)).is_some_and(|program| {
        is_launcher(&program)
            || match Elf::read(&program) {
                Some(elf) => elf.needed.iter().any(|name| begins(name, &LIBRARIES)),
                None => interpreter_is_launcher(&program),
            }
    })
}

fn is_launcher(program: &Path) -> bool {
    program.file_name().is_some_and(|name| begins(&name.to_string_lossy(), &LAUNCHERS))
}

/// True for a script whose first line names a launcher: `#!/usr/bin/env python3`.
fn interpreter_is_launcher(script: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(script).and_then(|file| file.take(256).read_to_end(&mut start));
    let text = String::from_utf8_lossy(&start);
    let line = text.lines().next().and_then(|line| line.strip_prefix("#!"));
    read.is_ok() && line.is_some_and(|line| line.split_whitespace().any(|word| is_launcher(Path::new(word))))
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(words: &[&str]) -> bool {
        let command: Vec<OsString> = words.iter().map(OsString::from).collect();
        device_files(&command, std::iter::empty())
    }

    #[test]
    fn scripts_and_variables_tell_and_ordinary_programs_do_not() {
        let dir = std::env::temp_dir().join(format!("roxie-need-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the test");
        for name in ["tool", "mpiexec.hydra", "other"] {
            let path = dir.join(name);
            let line = if name == "tool" { "#!/usr/bin/env python3\n" } else { "#!/bin/sh\n" };
            std::fs::write(&path, line).expect("a script");
        }
        let path = |name: &str| dir.join(name).display().to_string();
        assert!(needs(&[&path("tool")]), "its interpreter is Python");
        assert!(needs(&["sh", "-c", &format!("cd /; {} -n 2 x", path("mpiexec.hydra"))]));
        assert!(needs(&["env", "UCX_TLS=rc", "x"]));
        assert!(needs(&["ibstatus"]) && needs(&["sh", "-c", "/usr/sbin/ibstat -l;"]) && !needs(&["ibstats"]));
        let shows = |words: &[&str]| only_shows(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(
            shows(&["ibv_devices"]) && shows(&["/usr/bin/ibv_devinfo", "-l"]) && !shows(&["ib_write_bw"])
        );
        assert!(!needs(&[&path("other"), "--python3", "-x"]) && !needs(&["sh", "-c", "exit 42"]));
        assert!(device_files(&[], ["UCX_TLS".into()].into_iter()));
        std::fs::remove_dir_all(dir).expect("cleaned");
    }
}
