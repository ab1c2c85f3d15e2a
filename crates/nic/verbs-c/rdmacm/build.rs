//! Exports the functions of librdmacm.so: versioned names that jump to `roxie_cm_*` of libibverbs.so.1.
//!
//! The linker must see a library with the name libibverbs.so.1 and the version node ROXIE_1 to record the
//! dependency. The real library may not be built yet, so this script compiles a stand-in with the same
//! SONAME. At run time the dependency makes the loader refuse another libibverbs, which has no such node.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

#[path = "../build/machine.rs"]
mod machine;
#[path = "../build/table.rs"]
mod table;

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let out = env::var("OUT_DIR").expect("set by cargo");
    let out = Path::new(&out);
    let path = Path::new(&root).join("../symbols/rdmacm.txt");
    println!("cargo:rerun-if-changed={}", path.display());
    println!("cargo:rerun-if-changed=../build/machine.rs");
    println!("cargo:rerun-if-changed=../build/table.rs");
    let nodes = table::parse(&fs::read_to_string(path).expect("the symbol table"));

    let script = out.join("versions.map");
    fs::write(&script, table::version_script(&nodes)).expect("writing versions.map");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    fs::write(out.join("symbols.rs"), trampolines(&nodes, &arch)).expect("writing symbols.rs");
    let stand_in = build_stand_in(&nodes, out);

    for arg in [
        &format!("-Wl,--version-script={}", script.display()),
        "-Wl,-soname,librdmacm.so.1",
        "-Wl,-z,nodelete",
        "-nostartfiles",
        "-Wl,--no-as-needed",
        &stand_in,
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}

fn trampolines(nodes: &[table::Node], arch: &str) -> String {
    let mut asm = String::new();
    for (node, symbol) in nodes.iter().flat_map(|n| n.symbols.iter().map(move |s| (n, s))) {
        let (name, version) = (&symbol.name, &node.name);
        assert!(
            symbol.what != table::What::Byte && symbol.default,
            "{name}: only functions can be jumped to"
        );
        let label = format!("roxie_{name}");
        let entry = machine::entry(arch, &label);
        let jump = machine::far_jump(arch, &format!("roxie_cm_{name}"));
        writeln!(
            asm,
            ".p2align 4\n{label}:\n{entry}{jump}\n.size {label}, .-{label}\n.type {label}, %function\n\
             .globl {label}\n.symver {label}, {name}@@{version}, remove"
        )
        .expect("writing to a string");
    }
    format!("core::arch::global_asm!(r#\"\n.text\n{asm}\"#,\n{});\n", machine::options(arch))
}

/// Links a shared object that has the names and no code, and returns its path.
fn build_stand_in(nodes: &[table::Node], out: &Path) -> String {
    let mut source = String::from(".text\n");
    let mut script = String::from("ROXIE_1 {\n  global:\n");
    for symbol in nodes.iter().flat_map(|n| &n.symbols) {
        writeln!(source, ".globl roxie_cm_{0}\n.type roxie_cm_{0}, %function\nroxie_cm_{0}:", symbol.name)
            .expect("writing to a string");
        writeln!(script, "    roxie_cm_{};", symbol.name).expect("writing to a string");
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
