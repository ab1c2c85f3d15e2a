//! Network namespaces for tests: the calling thread moves into a new one, and it is gone with the thread.

use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

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

/// The calling thread's id, by which `ip link set .. netns` finds its namespace.
fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Another host: a thread in a namespace of its own that runs what it is sent.
pub(crate) struct Host {
    jobs: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
    pub(crate) id: i32,
}

impl Host {
    pub(crate) fn new() -> Option<Host> {
        let (jobs, inbox) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let id = enter_new_netns().then(thread_id);
            if ready.send(id).is_ok() {
                inbox.iter().for_each(|job| job());
            }
        });
        let id = started.recv().ok().flatten()?;
        Some(Host { jobs: Some(jobs), thread: Some(thread), id })
    }

    /// Runs `f` there and waits for its result.
    pub(crate) fn call<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = Box::new(move || drop(done.send(f())));
        self.jobs.as_ref().expect("taken in drop only").send(job).expect("the host lives");
        result.recv().expect("the job did not panic")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
