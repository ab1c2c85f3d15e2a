//! User namespaces, which need no privileges.

use std::fs;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use crate::failure::{During, Failure, Outcome};

/// Moves this process, which has one thread, into a new user namespace, where it has the privileges of root
/// and its user and group ids are `uid` and `gid`.
///
/// user_namespaces(7): without privileges one user and one group can be mapped, and setgroups(2) must be
/// denied.
pub(crate) fn enter(uid: Uid, gid: Gid) -> Outcome {
    let (own_uid, own_gid) = (Uid::effective(), Gid::effective());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|error| {
        Failure::new(format!("no user namespace: {error}")).hint(
            "run as root, or allow them: sysctl kernel.unprivileged_userns_clone=1, or \
             kernel.apparmor_restrict_unprivileged_userns=0",
        )
    })?;
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {own_uid} 1")),
        ("gid_map", format!("{gid} {own_gid} 1")),
    ];
    maps.iter().try_for_each(|(file, text)| {
        fs::write(format!("/proc/self/{file}"), text).during(&format!("writing {file}"))
    })
}
