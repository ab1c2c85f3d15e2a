//! Network namespaces for tests. A namespace belongs to a thread, and to whoever holds a descriptor of it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

/// Moves the calling thread into a new network namespace with `lo` up; false, with a word, if it may not.
pub fn enter_new_netns() -> bool {
    // SAFETY: unshare takes no pointer; only the calling thread is affected.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        eprintln!("skipped: needs root");
        return false;
    }
    ip("link set lo up");
    true
}

/// Gives the calling thread a bpf file system that only it sees. It must be root.
pub fn mount_bpf_fs() -> &'static str {
    // SAFETY: as above.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    run("mount", "--make-rprivate /");
    run("mount", "-t bpf none /sys/fs/bpf");
    "/sys/fs/bpf"
}

/// Runs `ip` in the calling thread's namespace.
pub fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program in the calling thread's namespace; it must succeed.
pub fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().expect("the program is installed");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {words}: {text}");
    text
}

/// A host: a network namespace that threads can visit. Sockets made there stay there.
pub struct Host(File);

impl Host {
    /// A new host with `lo` up; `None`, with a word, if this process may not make one.
    pub fn new() -> Option<Host> {
        let home = own_namespace();
        if !enter_new_netns() {
            return None;
        }
        let host = Host(own_namespace());
        enter(&home);
        Some(host)
    }

    /// Runs `f` there.
    pub fn visit<T>(&self, f: impl FnOnce() -> T) -> T {
        let home = own_namespace();
        enter(&self.0);
        let result = f();
        enter(&home);
        result
    }

    /// What `ip link set .. netns` calls it.
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
