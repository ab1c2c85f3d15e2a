//! Links with libibverbs.so.1 alone: the functions of the C library are what this library replaces.

use std::env;
use std::path::Path;

#[path = "../build/stand_in.rs"]
mod stand_in;

/// The functions of libibverbs.so.1 that are called.
const NAMES: [&str; 3] = ["roxie_nl_socket", "roxie_nl_sendto", "roxie_nl_recvmsg"];

fn main() {
    println!("cargo:rerun-if-changed=../build/stand_in.rs");
    let out = env::var("OUT_DIR").expect("set by cargo");
    let stand_in = stand_in::build(NAMES.into_iter(), Path::new(&out));
    for arg in ["-Wl,-soname,libroxie_preload.so", "-nostartfiles", "-Wl,--no-as-needed", &stand_in] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
