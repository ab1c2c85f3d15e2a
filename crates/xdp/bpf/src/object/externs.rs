//! What an object file takes from the kernel: its version and configuration (`__kconfig`), its functions
//! and its variables (`__ksym`).

use std::collections::HashMap;

use super::Kernel;
use crate::btf::reader::{EXTERN, Types, kind};

/// Section of the type information, and map, with the values.
pub(super) const CONFIG_SECTION: &str = ".kconfig";
/// Most bytes of all values.
const BYTES_MAX: usize = 1 << 16;

/// The values of the kernel's configuration that the code reads, one after the other.
#[derive(Debug, Default)]
pub(super) struct Configuration {
    pub(super) bytes: Vec<u8>,
    /// Offset of each value, by name.
    pub(super) at: HashMap<String, u32>,
}

impl Configuration {
    pub(super) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }
}

/// Returns the values of all externs in section `.kconfig`. `weak` tells whether an extern may be missing;
/// it is 0 then.
///
/// # Errors
/// A text that names the extern.
pub(super) fn configuration(
    types: &Types<'_>,
    kernel: &Kernel<'_>,
    weak: impl Fn(&str) -> bool,
) -> Result<Configuration, String> {
    let mut config = Configuration::default();
    let Some(section) = types.find(kind::DATASEC, CONFIG_SECTION).and_then(|ty| types.get(ty)) else {
        return Ok(config);
    };
    for placed in section.variables() {
        let variable = types.get(placed.ty).filter(|ty| ty.kind == kind::VAR && ty.linkage() == EXTERN);
        let Some(variable) = variable else { continue };
        let name = types.name(variable.name).ok_or("an extern of .kconfig has no name")?;
        let len = types.size(variable.word).unwrap_or(0) as usize;
        let align = len.clamp(1, 8).next_power_of_two();
        let at = config.bytes.len().next_multiple_of(align);
        if len == 0 || at + len > BYTES_MAX {
            return Err(format!("extern {name}: its size is not supported"));
        }
        config.bytes.resize(at + len, 0);
        let (_, ty) = types.resolved(variable.word).ok_or_else(|| format!("extern {name}: no type"))?;
        match value(name, ty.kind, types.text(ty.name).unwrap_or_default(), len, kernel) {
            Some(value) => {
                let len = value.len().min(len);
                config.bytes[at..at + len].copy_from_slice(&value[..len]);
            }
            None if weak(name) => {}
            None => {
                return Err(format!(
                    "extern {name}: this kernel's configuration has no such entry (declare it __weak if \
                     the program works without it)"
                ));
            }
        }
        config.at.insert(name.to_owned(), at as u32);
    }
    Ok(config)
}

/// Returns the value of an extern in little-endian bytes.
fn value(name: &str, kind: u32, type_name: &[u8], len: usize, kernel: &Kernel<'_>) -> Option<Vec<u8>> {
    let number = |number: u64| number.to_le_bytes().to_vec();
    if name == "LINUX_KERNEL_VERSION" {
        return kernel.version.map(|version| number(version.into()));
    }
    if name.starts_with("LINUX_HAS_") {
        // Both features that libbpf knows are older than the kernels that roxie supports.
        return Some(number(1));
    }
    let text = kernel.config(name)?;
    if kind == kind::ARRAY {
        let mut bytes = text.trim_matches('"').as_bytes().to_vec();
        bytes.truncate(len.saturating_sub(1));
        return Some(bytes);
    }
    match text {
        // `enum libbpf_tristate` has no, yes and module as 0, 1 and 2.
        "y" if type_name == b"char" => Some(vec![b'y']),
        "m" if type_name == b"char" => Some(vec![b'm']),
        "n" if type_name == b"char" => Some(vec![b'n']),
        "y" => Some(number(1)),
        "m" if kind == kind::ENUM => Some(number(2)),
        "m" => Some(number(1)),
        "n" => Some(number(0)),
        _ => {
            let (digits, base) = match text.strip_prefix("0x") {
                Some(digits) => (digits, 16),
                None => (text, 10),
            };
            u64::from_str_radix(digits, base).ok().map(number)
        }
    }
}
