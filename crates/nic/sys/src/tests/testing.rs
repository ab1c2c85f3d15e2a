//! Network namespaces and CPUs for tests. A namespace lives as long as a thread in it, or a descriptor of it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

/// Moves the calling thread into a new network namespace with `lo` up; prints a notice and returns false
/// without the privilege.
pub fn enter_new_netns() -> bool {
    // SAFETY: unshare takes no pointer; only the calling thread is affected.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        eprintln!("skipped: needs root");
        return false;
    }
    ip("link set lo up");
    true
}

/// Keeps the calling thread on the CPU where it runs.
pub fn stay_on_this_cpu() {
    // SAFETY: a set of zeros is an empty one, and the calls read and write only the set.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu().cast_unsigned() as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(result, 0);
}

/// Gives the calling thread a private bpf file system. It must be root.
pub fn mount_bpf_fs() -> &'static str {
    // SAFETY: unshare takes no pointer; only the calling thread is affected.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    run("mount", "--make-rprivate /");
    run("mount", "-t bpf none /sys/fs/bpf");
    "/sys/fs/bpf"
}

/// Runs `ip` in the calling thread's namespace.
pub fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program in the calling thread's namespace and returns its output; it must succeed.
pub fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().expect("the program is installed");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {words}: {text}");
    text
}

/// Calls `f` on this thread as another user, without groups. The process must be root.
pub fn as_user<T>(user: u32, f: impl FnOnce() -> T) -> T {
    // The calls of libc would change all threads.
    let set = |call, id: u32| {
        // SAFETY: takes no pointer; only the calling thread is affected.
        assert_eq!(unsafe { libc::syscall(call, -1, id, -1) }, 0);
    };
    let none: *const libc::gid_t = std::ptr::null();
    // SAFETY: no groups are read.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setgroups, 0, none) }, 0);
    set(libc::SYS_setresgid, user);
    set(libc::SYS_setresuid, user);
    let result = f();
    set(libc::SYS_setresuid, 0);
    set(libc::SYS_setresgid, 0);
    result
}

/// A host: a network namespace that threads can visit. Sockets created there stay there.
pub struct Host(File);

impl Host {
    /// Creates a host with `lo` up; prints a notice and returns `None` without the privilege.
    pub fn new() -> Option<Host> {
        let home = own_namespace();
        if !enter_new_netns() {
            return None;
        }
        let host = Host(own_namespace());
        enter(&home);
        Some(host)
    }

    /// Runs `f` in the host's namespace.
    pub fn visit<T>(&self, f: impl FnOnce() -> T) -> T {
        let home = own_namespace();
        enter(&self.0);
        let result = f();
        enter(&home);
        result
    }

    /// Returns the namespace's name for `ip link set .. netns`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

fn own_namespace() -> File {
    File::open("/proc/thread-self/ns/net").expect("the calling thread's namespace")
}

fn enter(namespace: &File) {
    // SAFETY: setns takes no pointer; only the calling thread is affected.
    let ret = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
}
