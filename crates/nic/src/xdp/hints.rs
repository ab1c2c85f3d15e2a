//! The receive hints that a driver offers to programs.

use bpf::HintKfuncs;
use sys::xdp_features;

/// Returns the kernel functions that give hints on this interface: those that the driver implements and the
/// kernel has. None before Linux 6.3.
#[must_use]
pub fn hint_kfuncs(ifindex: u32) -> HintKfuncs {
    let offered = xdp_features(ifindex).map(|features| features.rx_hints()).unwrap_or_default();
    if offered.is_empty() {
        return HintKfuncs::default();
    }
    let types = std::fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
    let HintKfuncs { timestamp, hash, vlan } = HintKfuncs::of_kernel(&types);
    HintKfuncs {
        timestamp: timestamp.filter(|_| offered.contains(&"timestamp")),
        hash: hash.filter(|_| offered.contains(&"hash")),
        vlan: vlan.filter(|_| offered.contains(&"vlan-tag")),
    }
}
