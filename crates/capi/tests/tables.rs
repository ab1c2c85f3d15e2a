//! Strings and rates against rdma-core's own libraries: one C program, run with theirs and with ours.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

#[test]
fn strings_and_rates_are_those_of_rdma_core() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tables");
    fs::create_dir_all(&dir).expect("a scratch directory");
    let program = dir.join("tables");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables.c");
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .args(["-libverbs", "-lrdmacm"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !compiled {
        println!("skipped: needs cc, libibverbs-dev and librdmacm-dev");
        return;
    }
    let Some(libraries) = run_directory(&dir) else {
        println!("skipped: needs cargo build of both libraries first");
        return;
    };
    let run = |with: Option<&Path>| {
        let mut command = Command::new(&program);
        command.env_remove("LD_LIBRARY_PATH");
        if let Some(with) = with {
            command.env("LD_LIBRARY_PATH", with);
        }
        let output = command.output().expect("running the table program");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (theirs, ours) = (run(None), run(Some(&libraries)));
    for (theirs, ours) in theirs.lines().zip(ours.lines()) {
        assert_eq!(theirs, ours);
    }
    assert_eq!(theirs.lines().count(), ours.lines().count());
}

/// A directory with both libraries under the names programs ask for.
fn run_directory(dir: &Path) -> Option<PathBuf> {
    let test = env::current_exe().ok()?;
    let profile = test.parent()?.parent()?;
    let links = dir.join("lib");
    fs::create_dir_all(&links).ok()?;
    for name in ["libibverbs.so", "librdmacm.so"] {
        let library = profile.join(name);
        if !library.exists() {
            return None;
        }
        let link = links.join(format!("{name}.1"));
        // A link of an earlier run may be there and may be stale.
        drop(fs::remove_file(&link));
        symlink(&library, &link).ok()?;
    }
    Some(links)
}
