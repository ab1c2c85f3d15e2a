//! Network namespaces for tests: the calling thread moves into a new one, and it is gone with the thread.

use std::process::Command;

/// Moves the calling thread into a new network namespace with `lo` up; false, with a word, if it may not.
pub(crate) fn enter_new_netns() -> bool {
    // SAFETY: unshare takes no pointer; only the calling thread is affected.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        eprintln!("skipped: needs root");
        return false;
    }
    ip("link set lo up");
    true
}

/// Gives the calling thread a bpf file system that only it sees. It must be root.
pub(crate) fn mount_bpf_fs() -> &'static str {
    // SAFETY: as above.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    run("mount", "--make-rprivate /");
    run("mount", "-t bpf none /sys/fs/bpf");
    "/sys/fs/bpf"
}

/// Runs `ip` in the calling thread's namespace.
pub(crate) fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program in the calling thread's namespace; it must succeed.
pub(crate) fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().expect("the program is installed");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {words}: {text}");
    text
}
