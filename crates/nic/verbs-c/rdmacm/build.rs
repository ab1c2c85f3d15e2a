//! Exports the functions of librdmacm.so: versioned names that jump to `roxie_cm_*` of libibverbs.so.1.
//!
//! `build/stand_in.rs` makes the libibverbs.so.1 that the linker sees.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

#[path = "../build/machine.rs"]
mod machine;
#[path = "../build/stand_in.rs"]
mod stand_in;
#[path = "../build/table.rs"]
mod table;

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let out = env::var("OUT_DIR").expect("set by cargo");
    let out = Path::new(&out);
    let path = Path::new(&root).join("../symbols/rdmacm.txt");
    println!("cargo:rerun-if-changed={}", path.display());
    for input in ["machine", "stand_in", "table"] {
        println!("cargo:rerun-if-changed=../build/{input}.rs");
    }
    let nodes = table::parse(&fs::read_to_string(path).expect("the symbol table"));

    let script = out.join("versions.map");
    fs::write(&script, table::version_script(&nodes)).expect("writing versions.map");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    fs::write(out.join("symbols.rs"), trampolines(&nodes, &arch)).expect("writing symbols.rs");
    let names: Vec<String> =
        nodes.iter().flat_map(|node| &node.symbols).map(|s| format!("roxie_cm_{}", s.name)).collect();
    let stand_in = stand_in::build(names.iter().map(String::as_str), out);

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
