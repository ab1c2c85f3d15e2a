//! A library with the name libibverbs.so.1 and the version node ROXIE_1, for the linker: it must see one to
//! record the dependency, and the real library may not be built yet. At run time the dependency makes the
//! loader refuse another libibverbs, which has no such node.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Links a shared object that has the names and no code, and returns its path.
pub(crate) fn build<'a>(names: impl Iterator<Item = &'a str>, out: &Path) -> String {
    let mut source = String::from(".text\n");
    let mut script = String::from("ROXIE_1 {\n  global:\n");
    for name in names {
        writeln!(source, ".globl {name}\n.type {name}, %function\n{name}:").expect("writing to a string");
        writeln!(script, "    {name};").expect("writing to a string");
    }
    source.push_str(" .long 0\n");
    script.push_str("  local:\n    *;\n};\n");
    let (source_path, script_path) = (out.join("stand_in.s"), out.join("stand_in.map"));
    let library = out.join("libibverbs-stand-in.so");
    fs::write(&source_path, source).expect("writing stand_in.s");
    fs::write(&script_path, script).expect("writing stand_in.map");
    let target = env::var("TARGET").expect("set by cargo").replace('-', "_");
    let names = [format!("CC_{target}"), "CC".to_string()];
    names.iter().for_each(|name| println!("cargo:rerun-if-env-changed={name}"));
    let compiler = names.iter().find_map(|name| env::var(name).ok()).unwrap_or_else(|| "cc".to_string());
    let status = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-Wl,-soname,libibverbs.so.1"])
        .arg(format!("-Wl,--version-script={}", script_path.display()))
        .arg("-o")
        .arg(&library)
        .arg(&source_path)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    assert!(status.success(), "{compiler} could not link the stand-in for libibverbs.so.1");
    library.display().to_string()
}
