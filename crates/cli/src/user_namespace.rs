//! User namespaces, which need no privileges.

use std::time::Duration;
use std::{fs, thread};

use nix::errno::Errno;
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
    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(|error| Failure::new(format!("no user namespace: {error}")).hint(remedy(error, setting)))?;
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {own_uid} 1")),
        ("gid_map", format!("{gid} {own_gid} 1")),
    ];
    maps.iter().try_for_each(|(file, text)| {
        fs::write(format!("/proc/self/{file}"), text).during(&format!("writing {file}"))
    })
}

/// Settings of the kernel by which it refuses user namespaces, and the values that allow them
/// (user_namespaces(7), Debian, Ubuntu).
const SETTINGS: [(&str, &str); 3] = [
    ("user.max_user_namespaces", "10000"),
    ("kernel.unprivileged_userns_clone", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "0"),
];

/// Whether no setting of the kernel refuses them.
pub(crate) fn are_allowed() -> bool {
    refusing(setting).is_none()
}

/// The value of a sysctl(8).
pub(crate) fn setting(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()?.trim().parse().ok()
}

/// The setting that refuses user namespaces, with the value that allows them.
fn refusing(value: impl Fn(&str) -> Option<u64>) -> Option<(&'static str, &'static str)> {
    SETTINGS.into_iter().find(|(name, good)| value(name).is_some_and(|n| (n == 0) != (*good == "0")))
}

fn remedy(error: Errno, value: impl Fn(&str) -> Option<u64>) -> String {
    match refusing(value) {
        Some((name, good)) => format!("run as root, or allow them, as root: sysctl -w {name}={good}"),
        None if error == Errno::ENOSPC => {
            "this user has as many as user.max_user_namespaces allows, or they are nested too deep \
             (user_namespaces(7)): run as root"
                .to_owned()
        }
        None => {
            "no sysctl forbids it, so this is a chroot, or a container with a seccomp profile that refuses \
             it: run as root, or outside it"
                .to_owned()
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_names_the_setting_that_refuses_user_namespaces_or_what_else_does() {
        let with = |name: &'static str, n| remedy(Errno::EPERM, move |asked| (asked == name).then_some(n));
        for (name, bad, good) in [
            ("user.max_user_namespaces", 0, "10000"),
            ("kernel.unprivileged_userns_clone", 0, "1"),
            ("kernel.apparmor_restrict_unprivileged_userns", 1, "0"),
        ] {
            assert!(with(name, bad).ends_with(&format!("sysctl -w {name}={good}")));
            assert!(with(name, good.parse().unwrap()).contains("chroot"));
        }
        assert!(remedy(Errno::ENOSPC, |_| None).contains("nested too deep"));
    }
}
