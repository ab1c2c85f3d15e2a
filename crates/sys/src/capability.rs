//! What the kernel lets this process do beyond an ordinary user's rights (capabilities(7)).

use std::fs;

/// A capability, by its number in linux/capability.h.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Capability {
    /// Change interfaces, attach programs.
    NetAdmin = 12,
    /// Raw and AF_XDP sockets.
    NetRaw = 13,
    /// Lock memory beyond RLIMIT_MEMLOCK.
    IpcLock = 14,
    /// Nearly everything; loading programs as well.
    SysAdmin = 21,
    /// Load programs and create maps (since 5.8).
    Bpf = 39,
}

/// The capabilities in effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Those of the calling thread; none if /proc is hidden.
    #[must_use]
    pub fn effective() -> Capabilities {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Capabilities(parse(&status).unwrap_or(0))
    }

    /// These and no others.
    #[must_use]
    pub fn of(list: &[Capability]) -> Capabilities {
        Capabilities(list.iter().fold(0, |mask, one| mask | 1 << *one as u32))
    }

    /// Whether it is among them.
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

/// proc_pid_status(5)
fn parse(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_those_in_effect_counts() {
        let status = "CapPrm:\tffffffffffffffff\nCapEff:\t0000008000003000\nCapBnd:\tffffffffffffffff\n";
        let capabilities = Capabilities(parse(status).unwrap());
        let has = [Capability::NetAdmin, Capability::NetRaw, Capability::Bpf];
        assert!(has.iter().all(|one| capabilities.has(*one)));
        assert!(!capabilities.has(Capability::IpcLock) && !capabilities.has(Capability::SysAdmin));
        assert_eq!(parse("Name:\tsh\n"), None);
        assert!(parse(&fs::read_to_string("/proc/thread-self/status").unwrap()).is_some());
    }
}
