//! Links without the C library: the loader would load a second copy of it into every program.

fn main() {
    for arg in ["-nostdlib", "-nostartfiles", "-Wl,-soname,libroxie_audit.so", "-Wl,-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
