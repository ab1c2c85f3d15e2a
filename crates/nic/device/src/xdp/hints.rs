//! The receive hints that a driver offers to programs.

use std::io;

use bpf::HintKfuncs;
use sys::xdp_features;

/// The types of the running kernel.
const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Returns the kernel functions that give hints on this interface: those that the driver implements and the
/// kernel has. None before Linux 6.3.
///
/// # Errors
/// What the kernel says about the interface (`ENODEV`), and `NotFound` or others if the driver has hints and
/// the kernel's types, which name the functions, cannot be read.
pub fn hint_kfuncs(ifindex: u32) -> io::Result<HintKfuncs> {
    let offered = match xdp_features(ifindex) {
        Ok(features) => features.rx_hints(),
        // The kernel reports no features.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(HintKfuncs::default()),
        Err(error) => return Err(error),
    };
    if offered.is_empty() {
        return Ok(HintKfuncs::default());
    }
    let types =
        std::fs::read(TYPES).map_err(|error| io::Error::new(error.kind(), format!("{TYPES}: {error}")))?;
    let found = HintKfuncs::of_kernel(&types);
    if found.is_empty() {
        let why = format!("{TYPES} has no function bpf_xdp_metadata_rx_*");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let HintKfuncs { timestamp, hash, vlan } = found;
    Ok(HintKfuncs {
        timestamp: timestamp.filter(|_| offered.contains(&"timestamp")),
        hash: hash.filter(|_| offered.contains(&"hash")),
        vlan: vlan.filter(|_| offered.contains(&"vlan-tag")),
    })
}
