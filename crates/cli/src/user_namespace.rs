//! User namespaces, which need no privileges.

use std::time::Duration;
use std::{fs, thread};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use crate::failure::{During, Failure, Outcome};

/// Interval and number of the checks whether the parser's thread has ended: a second, for a busy machine.
const ENDING_INTERVAL: Duration = Duration::from_micros(100);
const ENDING_CHECKS: u32 = 10_000;

/// Moves this process, which has one thread, into a new user namespace, where it has the privileges of root
/// and its user and group ids are `uid` and `gid`.
///
/// user_namespaces(7): without privileges one user and one group can be mapped, and setgroups(2) must be
/// denied.
pub(crate) fn enter(uid: Uid, gid: Gid) -> Outcome {
    let (own_uid, own_gid) = (Uid::effective(), Gid::effective());
    wait_until_alone();
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

/// Waits until this process has one thread, as it must have to enter a user namespace (setns(2)). The kernel
/// counts the thread that parsed the command line until it has removed it.
pub(crate) fn wait_until_alone() {
    for _ in 0..ENDING_CHECKS {
        // Without /proc nothing can be known.
        if fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() <= 1) {
            return;
        }
        thread::sleep(ENDING_INTERVAL);
    }
}
