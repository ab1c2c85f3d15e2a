//! The owner of UDP port 4791: none, this user's roxie processes, another user's, or the kernel's
//! Soft-RoCE.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use roxie::registry::{self, DomainConfig};
use wire::ROCE_PORT;

use super::Check;
use crate::engines::command_of;

/// Name of the check of the port.
pub(super) const NAME: &str = "port 4791";

pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![port()];
    checks.extend(soft_roce());
    checks
}

/// One socket of `/proc/net/udp`.
#[derive(Debug, Eq, PartialEq)]
struct Holder {
    uid: u32,
    inode: u64,
}

fn port() -> Check {
    let holders: Vec<Holder> = ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| parse(&table))
        .collect();
    let Some(first) = holders.first() else { return Check::ok(NAME, "free") };
    let holders = owners(&holders);
    let members = DomainConfig::from_env().map(|domain| registry::members(&domain)).unwrap_or_default();
    if members.iter().any(|member| member.is_admitted) {
        return Check::ok(NAME, format!("shared by roxie processes{holders}; new ones join them"));
    }
    // Any user can take names of members, but not the port of another user.
    let is_shared = members.iter().any(|member| member.process.uid == first.uid);
    let text = if is_shared {
        format!("belongs to roxie processes of user {}{holders}; users do not share it", first.uid)
    } else {
        format!("taken by user {}{holders}", first.uid)
    };
    let remedy = if Path::new("/sys/module/rdma_rxe").exists() {
        "the kernel's Soft-RoCE has it: as root, rdma link delete NAME, or modprobe -r rdma_rxe"
    } else if is_shared {
        "stop that process, run as that user, or use another network namespace: unshare -rn; \
         ROXIE_USERS lets several users share the port"
    } else {
        "stop the program that uses the port (ss -ulnp, as root), or use another network namespace: \
         unshare -rn"
    };
    Check::bad(NAME, text, remedy)
}

fn soft_roce() -> Option<Check> {
    let loaded = Path::new("/sys/module/rdma_rxe").exists();
    loaded.then(|| {
        Check::warn(
            "rdma_rxe",
            "the kernel's Soft-RoCE is loaded; with a link it takes port 4791",
            "to use both on one host, give roxie a network namespace of its own",
        )
    })
}

/// Rows of /proc/net/udp with the local port of RoCEv2 (proc_net_udp(5): `sl local remote st queues tr tm
/// retrnsmt uid timeout inode`).
fn parse(table: &str) -> Vec<Holder> {
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        (u16::from_str_radix(port, 16).ok()? == ROCE_PORT).then_some(())?;
        Some(Holder { uid: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()? })
    };
    table.lines().skip(1).filter_map(holder).collect()
}

/// ` (pid name, ...)` of the processes that hold one of these sockets, as far as this user may see them.
fn owners(holders: &[Holder]) -> String {
    let wanted: BTreeSet<String> = holders.iter().map(|h| format!("socket:[{}]", h.inode)).collect();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let descriptors = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let holds = descriptors
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|link| link.to_str().is_some_and(|link| wanted.contains(link)));
        if holds {
            found.push(format!("{pid} {}", command_of(pid)));
        }
    }
    if found.is_empty() { String::new() } else { format!(" ({})", found.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_on_port_4791_are_found() {
        let table = "\
sl local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode ref pointer drops
512: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 1000 0 4711 2 0000000000000000 0
513: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 4712 2 0000000000000000 0
";
        assert_eq!(parse(table), [Holder { uid: 1000, inode: 4711 }]);
    }
}
