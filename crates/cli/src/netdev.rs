//! Network interfaces by name, as the caller's network namespace has them.

use crate::failure::{Failure, Outcome};

/// Names of all interfaces, in the kernel's order.
pub(crate) fn names() -> Vec<String> {
    let Ok(list) = nix::net::if_::if_nameindex() else { return Vec::new() };
    list.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect()
}

/// Fails with the list of interfaces if there is none called `name`.
pub(crate) fn check(name: &str) -> Outcome {
    let names = names();
    if names.iter().any(|n| n == name) {
        return Ok(());
    }
    Err(Failure::new(format!("no network interface called '{name}'"))
        .hint(format!("there are: {}", names.join(", "))))
}
