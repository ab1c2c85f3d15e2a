//! Files by name: each place of the products that creates, changes, opens, connects to or executes something
//! by a path goes through `sys::Dir` and `sys::NamedFile`, or stands here with its reason.

use crate::tree;

/// What creates or changes something by its path.
const CHANGES: [&str; 19] = [
    "File::create",
    "File::options()",
    "OpenOptions::new()",
    "DirBuilder",
    "fs::write(",
    "fs::rename(",
    "fs::copy(",
    "fs::hard_link(",
    "fs::create_dir",
    "fs::remove_",
    "fs::set_permissions(",
    "unix::fs::symlink",
    " symlink(",
    "UnixListener::bind",
    "UnixDatagram::",
    "libc::open(",
    "libc::mkdir",
    "libc::rename",
    "libc::unlink",
];
/// What reads, connects to or executes something by its path.
const USES: [&str; 9] = [
    "File::open(",
    "fs::read(",
    "fs::read_to_string(",
    "fs::read_dir(",
    "fs::read_link(",
    "UnixStream::connect",
    "connect_seqpacket_file(",
    "bind_seqpacket_file(",
    "Command::new(",
];
/// Paths of the kernel.
const OF_KERNEL: [&str; 3] = ["\"/proc", "\"/sys", "\"/dev/null\""];

/// The one way itself.
const HOME: &str = "crates/nic/sys/src/dir/";

/// Files that change something by a path, with the reason.
const MAY_CHANGE: [(&str, &str); 5] = [
    ("crates/cli/src/device_files.rs", "a tmpfs in a mount namespace of this process alone"),
    ("crates/cli/src/metrics/listener.rs", "the path of a proven directory"),
    ("crates/cli/src/output.rs", "makes directories that the user named, for manual pages"),
    ("crates/nic/sys/src/guarded/pages.rs", "/proc/self/maps and /proc/self/mem, without allocation"),
    (
        "crates/nic/sys/src/unix.rs",
        "opens the directory of a socket with a path that is too long for an address",
    ),
];

/// Files that use a path that is not the kernel's, with the reason.
const MAY_USE: [(&str, &str); 32] = [
    ("crates/nic/verbs-c/src/ibv/device.rs", "a type of this name"),
    ("crates/nic/verbs-c/src/ibv/sysfs.rs", "a file that the program names"),
    ("crates/tools/capture/src/live/command.rs", "the path of a private directory, which was proven"),
    ("crates/tools/capture/src/source/mod.rs", "a capture that the user names"),
    ("crates/cli/src/capture/pager.rs", "the user's PAGER"),
    ("crates/cli/src/chaos/search.rs", "the user's command, or this program"),
    ("crates/cli/src/check/suppress.rs", "a file that the user names"),
    ("crates/cli/src/demo/mod.rs", "this program"),
    ("crates/cli/src/device_files.rs", "as above"),
    ("crates/nic/device/src/registry/holder.rs", "/proc"),
    ("crates/cli/src/elf.rs", "the user's command: its kind, for a warning"),
    ("crates/cli/src/hook/object.rs", "an object that the user names, /boot/config of root"),
    ("crates/cli/src/interop/program.rs", "a program that the user names"),
    ("crates/cli/src/lab/enter.rs", "/proc"),
    ("crates/cli/src/lab/mod.rs", "this program"),
    ("crates/cli/src/library.rs", "libraries beside this program; their owners are checked"),
    ("crates/cli/src/metrics/hosts.rs", "/etc/hosts"),
    ("crates/cli/src/need.rs", "the user's command: its interpreter"),
    ("crates/cli/src/own/bundle.rs", "this program, or one that the user names"),
    ("crates/cli/src/own/unpacked.rs", "/proc"),
    ("crates/cli/src/program.rs", "the user's command"),
    ("crates/cli/src/pair.rs", "this program; /proc"),
    ("crates/cli/src/sim/fabric/file.rs", "a description that the user names"),
    ("crates/cli/src/trace/mod.rs", "traces that the user names"),
    ("crates/cli/src/xdp/beside.rs", "xdp-loader"),
    ("crates/cli/src/xdp/log.rs", "/sys/kernel/tracing"),
    ("crates/cli/src/xdp/test/place.rs", "ip(8)"),
    ("crates/nic/device/src/recording.rs", "the socket of a listener that must be this user or root"),
    ("crates/nic/device/src/registry/meeting.rs", "the path of a private directory, which was proven"),
    ("crates/nic/rsocket/src/settings.rs", "/etc/rdma/rsocket of root"),
    ("crates/nic/device/src/xdp/hints.rs", "/sys/kernel/btf"),
    ("crates/nic/sys/src/unix.rs", "the calls themselves"),
];

/// The lines of the products, without tests, in which one of these words stands.
fn lines_with<'a>(words: &'a [&'a str]) -> impl Iterator<Item = (String, String)> + 'a {
    let files = tree::files().into_iter().filter(|file| file.is_rust() && is_product(&file.name));
    files.flat_map(move |file| {
        let code = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        let found = code.lines().map(crate::code).filter(|line| words.iter().any(|word| line.contains(word)));
        let of_kernel = |line: &&str| OF_KERNEL.iter().any(|path| line.contains(path));
        found
            .filter(|line| !of_kernel(line))
            .map(|line| (file.name.clone(), line.trim().to_owned()))
            .collect::<Vec<_>>()
    })
}

/// Sources of what users run: no tests, no build scripts, no examples.
fn is_product(name: &str) -> bool {
    let is_test = name.contains("tests.rs") || name.contains("/tests/");
    name.starts_with("crates/") && name.contains("/src/") && !is_test && !name.starts_with(HOME)
}

#[test]
fn what_is_changed_by_a_path_goes_through_the_checked_way() {
    check(&CHANGES, &MAY_CHANGE);
}

#[test]
fn what_is_used_by_a_path_goes_through_the_checked_way() {
    check(&USES, &MAY_USE);
}

fn check(words: &[&str], allowed: &[(&str, &str)]) {
    let found: Vec<_> = lines_with(words).collect();
    let is_allowed = |name: &str| allowed.iter().any(|(file, _)| *file == name);
    let violations: Vec<_> = found
        .iter()
        .filter(|(name, _)| !is_allowed(name))
        .map(|(name, line)| format!("{name}: {line}"))
        .collect();
    crate::none("use sys::Dir or sys::NamedFile, or give the reason", &violations);
    let unused = allowed.iter().filter(|(file, _)| !found.iter().any(|(name, _)| name == file));
    let unused: Vec<_> = unused.map(|(file, _)| (*file).to_owned()).collect();
    crate::none("these need no reason any more", &unused);
}
