//! Compiles C programs and runs them with roxie's libraries.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::libraries::built;

/// Compiles `tests/<name>.c` against the installed headers; `None` after printing why that is impossible.
pub(crate) fn compile(name: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&dir).expect("a scratch directory");
    let program = dir.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("{name}.c"));
    let headers = Path::new("/usr/include/infiniband/verbs.h").exists()
        && Path::new("/usr/include/rdma/rdma_cma.h").exists();
    if !headers || Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: needs cc, libibverbs-dev and librdmacm-dev");
        return None;
    }
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .args(["-lrdmacm", "-libverbs", "-lpthread"])
        .output()
        .expect("running cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

/// Runs a program with roxie's libraries, in a domain of its own; `None` after printing which library is
/// missing.
pub(crate) fn run_with_ours(program: &Path) -> Option<Output> {
    let libraries = run_directory(program)?;
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries).env("ROXIE_DOMAIN", domain());
    Some(command.output().expect("running the program"))
}

/// Returns a domain that no other process is in.
pub(crate) fn domain() -> String {
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a UDP socket");
    let port = probe.local_addr().expect("it is bound").port();
    format!("c-program-{port}:{port}")
}

/// Returns a directory beside the program with both libraries under the names that programs load; `None`
/// after printing which of them is missing.
pub(crate) fn run_directory(program: &Path) -> Option<PathBuf> {
    let links = program.with_extension("lib");
    fs::create_dir_all(&links).expect("a scratch directory");
    for name in ["libibverbs.so", "librdmacm.so"] {
        let library = built(name)?;
        let link = links.join(format!("{name}.1"));
        // Removes a link of an earlier run.
        drop(fs::remove_file(&link));
        symlink(&library, &link).expect("a link in the scratch directory");
    }
    Some(links)
}
