//! Exports the functions of libibverbs.so: symbol versions, SONAME, and the jumps from exported names to Rust
//! functions.
//!
//! rustc exports `#[no_mangle]` functions with an anonymous version script, which the linker does not combine
//! with named versions. So no function is exported that way: each (name, version) pair becomes a label in one
//! `global_asm!` block, a jump to the mangled Rust function, and `.symver` names it. This needs rust-lld (the
//! default linker on x86_64 Linux) or zig's lld; GNU ld refuses two version scripts.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use table::{Node, Symbol, What};

#[path = "build/functions.rs"]
mod functions;
#[path = "build/machine.rs"]
mod machine;
#[path = "build/table.rs"]
mod table;

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let out = env::var("OUT_DIR").expect("set by cargo");
    let read = |name: &str| {
        let path = Path::new(&root).join("symbols").join(name);
        println!("cargo:rerun-if-changed={}", path.display());
        fs::read_to_string(path).expect("the symbol table")
    };
    for input in ["build/functions.rs", "build/machine.rs", "build/table.rs", "src"] {
        println!("cargo:rerun-if-changed={input}");
    }

    let mut nodes = table::parse(&read("ibverbs.txt"));
    nodes.push(roxie_node(table::parse(&read("rdmacm.txt"))));

    let script = Path::new(&out).join("versions.map");
    fs::write(&script, table::version_script(&nodes)).expect("writing versions.map");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    fs::write(Path::new(&out).join("symbols.rs"), trampolines(&nodes, &arch)).expect("writing symbols.rs");

    fs::write(Path::new(&out).join("functions.rs"), functions::table(&Path::new(&root).join("src")))
        .expect("writing functions.rs");

    // Programs call dlclose() while threads of the library run, so the library must never be unmapped.
    for arg in [&format!("--version-script={}", script.display()), "-soname,libibverbs.so.1", "-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{arg}");
    }
}

/// Returns the version node of what libibverbs does not have: the functions that librdmacm.so.1 calls, with a
/// prefix, those that libroxie_preload.so calls, and `roxie_last_refusal`.
fn roxie_node(rdmacm: Vec<Node>) -> Node {
    let symbols = rdmacm.into_iter().flat_map(|node| node.symbols);
    let mut symbols: Vec<Symbol> =
        symbols.map(|s| Symbol { name: format!("roxie_cm_{}", s.name), ..s }).collect();
    let others = ["roxie_last_refusal", "roxie_nl_recvmsg", "roxie_nl_sendto", "roxie_nl_socket"];
    symbols.extend(others.map(Symbol::function));
    Node { name: "ROXIE_1".to_string(), parent: None, symbols }
}

/// Returns the `global_asm!` block: one label per (name, version).
fn trampolines(nodes: &[Node], arch: &str) -> String {
    let mut asm = String::new();
    let mut operands: Vec<String> = Vec::new();
    for (node, symbol) in nodes.iter().flat_map(|n| n.symbols.iter().map(move |s| (n, s))) {
        let label = format!("roxie_{}_{}", symbol.name, node.name.replace('.', "_"));
        let body = match &symbol.what {
            What::Function(function) => {
                operands.push(function.clone());
                let jump = machine::jump(arch, &format!("{{{function}}}"));
                format!(".text\n.p2align 4\n{label}:\n{}{jump}", machine::entry(arch, &label))
            }
            What::Fails { errno, returns } => {
                operands.push("unsupported".to_string());
                let entry = machine::entry(arch, &label);
                let load = machine::load_arguments(arch, &label, *errno, *returns);
                let (name, jump) = (&symbol.name, machine::jump(arch, "{unsupported}"));
                format!(
                    ".section .rodata\n{label}_name: .asciz \"{name}\"\n.text\n.p2align 4\n\
                     {label}:\n{entry}{load}{jump}"
                )
            }
            What::Byte => format!(".data\n{label}:\n .byte 0"),
        };
        let ty = if symbol.what == What::Byte { "object" } else { "function" };
        let at = if symbol.default { "@@" } else { "@" };
        writeln!(
            asm,
            "{body}\n.size {label}, .-{label}\n.type {label}, %{ty}\n.globl {label}\n\
             .symver {label}, {}{at}{}, remove",
            symbol.name, node.name
        )
        .expect("writing to a string");
    }
    operands.sort();
    operands.dedup();
    let mut text = String::from("core::arch::global_asm!(r#\"\n");
    text.push_str(&asm);
    text.push_str(".text\n\"#,\n");
    for function in operands {
        writeln!(text, "{function} = sym {function},").expect("writing to a string");
    }
    writeln!(text, "{});", machine::options(arch)).expect("writing to a string");
    text
}
