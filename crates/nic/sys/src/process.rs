//! User and limits of the process, and the signals of a program that it starts.

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

/// The effective user id.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: geteuid takes no argument and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether a process is stopped by a signal or by a debugger; false if that is not known.
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    stat_fields(&pid.to_string()).is_some_and(|fields| fields.starts_with(['T', 't']))
}

/// Whether a thread of another process runs, or waits for a CPU; false if that is not known.
#[must_use]
pub fn is_runnable(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut fields =
        tasks.filter_map(|task| stat_fields(&format!("{pid}/task/{}", task.file_name().display())));
    pid != std::process::id() && fields.any(|fields| fields.starts_with('R'))
}

/// The fields of the file `stat` of a process or thread, from the state on, which is field 3
/// (proc_pid_stat(5)). The name before it may contain any character.
#[must_use]
pub fn stat_fields(id: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    text.rsplit_once(") ").map(|(_, fields)| fields.to_owned())
}

/// Lowers the priority of the calling thread: `nice` from 1 to 19 (setpriority(2)).
///
/// # Errors
/// `EACCES` if it has a lower priority already.
pub fn lower_priority(nice: i32) -> std::io::Result<()> {
    // SAFETY: setpriority takes no pointer; 0 is the calling thread.
    super::check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)
}

/// From now on a write beyond the limit of file sizes (RLIMIT_FSIZE) fails with `EFBIG` and does not end
/// this process. Programs that it starts or becomes are not affected: execve(2) resets a signal that has a
/// handler, unlike one that is blocked or ignored.
pub fn survive_file_size_limit() {
    extern "C" fn nothing(_: libc::c_int) {}
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `action` is a sigaction that the kernel may write, zeros are a valid one, and the handler does
    // nothing.
    unsafe {
        libc::sigaction(libc::SIGXFSZ, std::ptr::null(), action.as_mut_ptr());
        let mut action = action.assume_init();
        // A program inherits that its parent ignores the signal.
        if action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGXFSZ, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Makes the program that `command` starts receive `signals`, although the thread that starts it blocks them:
/// a program inherits the signal mask of that thread.
pub fn unblock_signals(command: &mut Command, signals: &[libc::c_int]) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is ours; sigemptyset initialises it.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    };
    // SAFETY: pthread_sigmask may be called between fork and exec, and the closure owns the set.
    unsafe {
        command.pre_exec(move || {
            match libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(std::io::Error::from_raw_os_error(error)),
            }
        });
    }
}

/// Largest file size that this process may write (RLIMIT_FSIZE); a write beyond it raises SIGXFSZ
/// ([`WriteSignals`](crate::WriteSignals)).
#[must_use]
pub fn file_size_limit() -> u64 {
    limit(libc::RLIMIT_FSIZE)
}

/// The soft limit of a resource (getrlimit(2)).
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    limits(resource)[0]
}

/// The soft and the hard limit of a resource.
fn limits(resource: libc::__rlimit_resource_t) -> [u64; 2] {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit the kernel may write; the call cannot fail with these arguments.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    [limit.rlim_cur, limit.rlim_max]
}

/// The soft limit of open descriptors. It also bounds the descriptors that an unprivileged user has in
/// flight.
#[must_use]
pub fn descriptor_limit() -> u64 {
    limit(libc::RLIMIT_NOFILE)
}

/// The soft and the hard limit of open descriptors.
#[must_use]
pub fn descriptor_limits() -> [u64; 2] {
    limits(libc::RLIMIT_NOFILE)
}

/// Raises the soft limit of open descriptors while it lives, as far as the hard limit allows. Several
/// values may live at once, in several threads; the last one restores the old limit.
#[derive(Debug)]
pub struct DescriptorLimit(());

/// The number of live values, and the limit to restore.
static RAISED: Mutex<(usize, Option<libc::rlimit>)> = Mutex::new((0, None));

impl DescriptorLimit {
    /// Enough for the group's sockets in our table, and for the sockets in flight in many domains of one
    /// user.
    const WANTED: libc::rlim_t = 65_536;

    /// Raises the limit; does nothing where that is not possible.
    #[must_use]
    pub fn raise() -> DescriptorLimit {
        let mut raised = RAISED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        raised.0 += 1;
        if raised.0 == 1 {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` is a valid rlimit the kernel may write.
            let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
            let wanted = Self::WANTED.min(limit.rlim_max);
            if known && limit.rlim_cur < wanted {
                let higher = libc::rlimit { rlim_cur: wanted, rlim_max: limit.rlim_max };
                // SAFETY: `higher` is a valid rlimit.
                if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const higher) } == 0 {
                    raised.1 = Some(limit);
                }
            }
        }
        DescriptorLimit(())
    }
}

/// Keeps the limit unchanged during a fork.
pub struct LimitLock(MutexGuard<'static, (usize, Option<libc::rlimit>)>);

impl LimitLock {
    /// Takes the lock; `None` if that takes until `until_ns`.
    #[must_use]
    pub fn take(until_ns: u64) -> Option<LimitLock> {
        super::lock_until(&RAISED, until_ns).map(LimitLock)
    }

    /// Restores the limit in a forked child, which does not have the threads that raised it.
    pub fn restore(&mut self) {
        self.0.0 = 0;
        if let Some(limit) = self.0.1.take() {
            // SAFETY: `limit` is the valid rlimit that getrlimit wrote; lowering a soft limit cannot fail.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        }
    }
}

impl Drop for DescriptorLimit {
    fn drop(&mut self) {
        let mut raised = RAISED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        raised.0 -= 1;
        if raised.0 == 0 {
            LimitLock(raised).restore();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_told_from_one_that_waits() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let pid = child.id() as i32;
        let becomes = |stopped: bool, signal: libc::c_int| {
            // SAFETY: kill takes no pointer.
            unsafe { libc::kill(pid, signal) };
            (0..5000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                is_stopped(pid) == stopped
            })
        };
        assert!(!is_stopped(pid) && !is_stopped(-1));
        assert!(becomes(true, libc::SIGSTOP) && becomes(false, libc::SIGCONT));
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    #[test]
    fn a_process_that_computes_is_runnable_and_one_that_sleeps_is_not() {
        let start = |words: &[&str]| Command::new(words[0]).args(&words[1..]).spawn().unwrap();
        let mut children = [start(&["sh", "-c", "while :; do :; done"]), start(&["sleep", "60"])];
        while !is_runnable(children[0].id()) || is_runnable(children[1].id()) {
            std::thread::yield_now();
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The blocked signals of a child, from /proc/PID/status.
    fn blocked(command: &mut Command) -> String {
        let output = command.output().expect("started").stdout;
        String::from_utf8_lossy(&output).trim().to_owned()
    }

    #[test]
    fn a_command_does_not_block_the_signals_that_its_starter_blocks() {
        let command = || {
            let mut command = Command::new("sed");
            command.args(["-n", "s/^SigBlk:\\t*//p", "/proc/self/status"]);
            command
        };
        let (before, mut kept) = (blocked(&mut command()), command());
        unblock_signals(&mut kept, &[libc::SIGHUP]);
        let mut hup = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set of this function.
        unsafe {
            libc::sigemptyset(hup.as_mut_ptr());
            libc::sigaddset(hup.as_mut_ptr(), libc::SIGHUP);
            libc::pthread_sigmask(libc::SIG_BLOCK, hup.as_ptr(), std::ptr::null_mut());
        }
        assert_ne!(blocked(&mut command()), before, "SIGHUP is blocked in a command without this");
        assert_eq!(blocked(&mut kept), before);
    }

    #[test]
    fn the_limit_is_not_lower_while_raised() {
        let before = descriptor_limit();
        let _raised = (DescriptorLimit::raise(), DescriptorLimit::raise());
        assert!(descriptor_limit() >= before.min(DescriptorLimit::WANTED));
    }
}
