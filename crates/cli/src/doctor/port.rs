//! The owner of UDP port 4791: none, this user's roxie processes, another user's, or the kernel's
//! Soft-RoCE.

use std::path::Path;

use roxie::registry::{self, DomainConfig, PortHolder};
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

fn port() -> Check {
    let holders = PortHolder::of(ROCE_PORT);
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

/// ` (pid name, ...)` of the processes that hold one of these sockets, as far as this user may see them.
fn owners(holders: &[PortHolder]) -> String {
    let found: Vec<String> =
        PortHolder::processes(holders).into_iter().map(|pid| format!("{pid} {}", command_of(pid))).collect();
    if found.is_empty() { String::new() } else { format!(" ({})", found.join(", ")) }
}
