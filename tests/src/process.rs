//! Processes that always end: each is a process group, has a time limit, and is killed when its value is
//! dropped.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Interval of checks for states that the kernel does not announce.
const LOOK: Duration = Duration::from_millis(2);
/// Lines of a program's output in a failure message.
const LINES_MAX: usize = 40;

/// A started program, with its output in a file.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
    log: PathBuf,
    net: PathBuf,
    ended: bool,
}

/// How a program ended, and its output.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Command line, for messages.
    pub line: String,
    /// Exit status; `None` if it was killed at its time limit.
    pub status: Option<ExitStatus>,
    /// Standard output and standard error, in the order of arrival.
    pub output: String,
    /// Time from start of the wait to the end.
    pub took: Duration,
}

impl Running {
    /// Starts `command` with its output in `log`. `line` is the command line for messages. `net` is the
    /// proc_pid_net(5) directory of the network namespace where it will run, if another process shows it
    /// already.
    ///
    /// # Errors
    /// If the program or the file cannot be opened.
    pub fn start(mut command: Command, line: String, log: &Path, net: Option<PathBuf>) -> io::Result<Self> {
        if let Some(dir) = log.parent() {
            fs::create_dir_all(dir)?;
        }
        let out = File::create(log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let child = command.spawn()?;
        let net = net.unwrap_or_else(|| PathBuf::from(format!("/proc/{}/net", child.id())));
        Ok(Self { child, line, log: log.to_owned(), net, ended: false })
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A table of its network namespace: until the process has entered it, its own /proc directory shows
    /// the namespace of its parent.
    #[must_use]
    pub fn net(&self, table: &str) -> String {
        fs::read_to_string(self.net.join(table)).unwrap_or_default()
    }

    /// Its output so far.
    #[must_use]
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// CPU time of its threads so far (`/proc/PID/task/TID/schedstat`), without children.
    #[must_use]
    pub fn ran(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let ran = tasks.filter_map(|task| {
            let line = fs::read_to_string(task.path().join("schedstat")).ok()?;
            line.split(' ').next()?.parse().ok()
        });
        ran.map(Duration::from_nanos).sum()
    }

    /// Whether it has ended already.
    pub fn has_ended(&mut self) -> bool {
        self.ended = self.ended || !matches!(self.child.try_wait(), Ok(None));
        self.ended
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, signal: Signal) {
        if !self.ended {
            // ESRCH: it has ended, which the next wait reports.
            let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), signal);
        }
    }

    /// Waits for its end; kills it after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let mut status = None;
        loop {
            match self.child.try_wait() {
                Ok(None) if start.elapsed() < limit => sleep(LOOK),
                Ok(None) | Err(_) => break,
                Ok(ended) => {
                    status = ended;
                    break;
                }
            }
        }
        let took = start.elapsed();
        self.end();
        Ended { line: self.line.clone(), status, output: self.output(), took }
    }

    fn end(&mut self) {
        self.signal(Signal::SIGKILL);
        self.ended = self.child.wait().is_ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.end();
        }
    }
}

impl Ended {
    /// Whether it exited with 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Exit code, if it exited.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    /// Command line, exit status and last lines of output, for a failure message.
    #[must_use]
    pub fn describe(&self) -> String {
        let end = match self.status {
            None => format!("did not end in {:.1} s, killed", self.took.as_secs_f64()),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code} after {:.1} s", self.took.as_secs_f64()),
                (None, signal) => format!("killed by signal {}", signal.unwrap_or_default()),
            },
        };
        let lines: Vec<&str> = self.output.lines().collect();
        let skipped = lines.len().saturating_sub(LINES_MAX);
        let cut = if skipped > 0 { format!("    ... {skipped} lines\n") } else { String::new() };
        let shown: String = lines[skipped..].iter().map(|line| format!("    {line}\n")).collect();
        format!("$ {}\n  {end}\n{cut}{shown}", self.line)
    }
}

/// Polls until `condition` holds; returns false after `limit`.
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        sleep(LOOK);
    }
}
