//! Privileges of this process beyond those of an ordinary user (capabilities(7)).

use std::fs;

/// A capability, by its number in linux/capability.h.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Capability {
    /// Configure interfaces, attach programs.
    NetAdmin = 12,
    /// Raw and AF_XDP sockets.
    NetRaw = 13,
    /// Lock memory beyond RLIMIT_MEMLOCK.
    IpcLock = 14,
    /// Nearly everything, loading programs included.
    SysAdmin = 21,
    /// Load programs and create maps (since 5.8).
    Bpf = 39,
}

/// A set of effective capabilities.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Returns those of the calling thread; none if /proc is hidden.
    #[must_use]
    pub fn effective() -> Capabilities {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Capabilities(parse(&status).unwrap_or(0))
    }

    /// Returns the set of exactly these.
    #[must_use]
    pub fn of(list: &[Capability]) -> Capabilities {
        Capabilities(list.iter().fold(0, |mask, one| mask | 1 << *one as u32))
    }

    /// Whether the set contains it.
    #[must_use]
    pub fn has(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u32 != 0
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::IpcLock => "CAP_IPC_LOCK",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::Bpf => "CAP_BPF",
        })
    }
}

/// Parses the mask of proc_pid_status(5).
fn parse(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_effective_mask_counts() {
        let status = "CapPrm:\tffffffffffffffff\nCapEff:\t0000008000003000\nCapBnd:\tffffffffffffffff\n";
        let capabilities = Capabilities(parse(status).unwrap());
        let has = [Capability::NetAdmin, Capability::NetRaw, Capability::Bpf];
        assert!(has.iter().all(|one| capabilities.has(*one)));
        assert!(!capabilities.has(Capability::IpcLock) && !capabilities.has(Capability::SysAdmin));
        assert_eq!(parse("Name:\tsh\n"), None);
        assert!(parse(&fs::read_to_string("/proc/thread-self/status").unwrap()).is_some());
    }
}
