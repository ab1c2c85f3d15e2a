//! A program on this host or, behind a command such as ssh, on the peer: its output and its exit status.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ending::Ending;
use crate::supervised;

/// Interval at which a program is checked for its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes kept of each output stream: this many of its beginning, and of its end.
const OUTPUT_MAX: usize = 64 << 10;
/// A program that does not end after SIGTERM gets SIGKILL after this time.
const END_MAX: Duration = Duration::from_millis(500);
/// Time for a program to notice that its peer program has ended.
const ALONE_MAX: Duration = Duration::from_secs(2);
/// Exit codes for a command that does not exist (sh, env, ssh) or cannot be executed.
const NOT_FOUND: [i32; 2] = [126, 127];

/// A running program; it is ended when this is dropped.
pub(super) struct Program {
    child: Child,
    /// Standard output, standard error.
    outputs: [Arc<Mutex<Vec<u8>>>; 2],
    readers: Vec<JoinHandle<()>>,
    ending: Rc<Ending>,
}

/// How a program ended.
pub(super) struct Ended {
    /// `None`: the time limit was reached.
    status: Option<ExitStatus>,
    /// Standard output, then standard error: a program that writes to a pipe may buffer the former until
    /// its end.
    pub(super) output: String,
}

impl Program {
    /// Starts a program; waiting for it stops when `ending` reports a signal.
    pub(super) fn start(words: &[&str], ending: &Rc<Ending>) -> std::io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let outputs = [Arc::default(), Arc::default()];
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|pipe| collect(pipe, &outputs[0])));
        readers.extend(child.stderr.take().map(|pipe| collect(pipe, &outputs[1])));
        Ok(Self { child, outputs, readers, ending: Rc::clone(ending) })
    }

    /// Whether it is still running.
    pub(super) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end as [`wait`](Self::wait) does, but not much longer than `other` runs.
    pub(super) fn wait_beside(mut self, other: &mut Self, limit: Duration) -> Ended {
        let (ending, mut alone_since) = (Rc::clone(&self.ending), None);
        self.watch(limit, || {
            let alone = !other.runs() && alone_since.get_or_insert_with(Instant::now).elapsed() >= ALONE_MAX;
            alone || ending.is_due()
        });
        self.wait(Duration::ZERO)
    }

    /// Waits for its end, at most for `limit`, then ends it.
    pub(super) fn wait(mut self, limit: Duration) -> Ended {
        let ending = Rc::clone(&self.ending);
        self.watch(limit, || ending.is_due());
        let status = self.child.try_wait().ok().flatten();
        supervised::end(&mut self.child, END_MAX);
        // Processes that it started may keep the pipes open.
        let until = Instant::now() + END_MAX;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        let [out, err] = self.outputs.each_ref().map(|output| {
            String::from_utf8_lossy(&output.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
        });
        let gap = if out.is_empty() || out.ends_with('\n') { "" } else { "\n" };
        Ended { status, output: format!("{out}{gap}{err}") }
    }

    /// Returns at its end, after `limit`, or when `enough` returns true.
    fn watch(&mut self, limit: Duration, mut enough: impl FnMut() -> bool) {
        let until = Instant::now() + limit;
        while self.runs() && Instant::now() < until && !enough() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        supervised::end(&mut self.child, END_MAX);
    }
}

impl Ended {
    pub(super) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The command does not exist.
    pub(super) fn is_missing(&self) -> bool {
        self.status.and_then(|status| status.code()).is_some_and(|code| NOT_FOUND.contains(&code))
    }

    /// How it ended, in words.
    pub(super) fn how(&self) -> String {
        self.status.map_or_else(|| "took too long".to_owned(), |status| status.to_string())
    }

    /// The last lines that it printed.
    pub(super) fn last_lines(&self, most: usize) -> Vec<&str> {
        let lines: Vec<&str> = self.output.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(most)..].to_vec()
    }
}

/// Reads a pipe to its end.
fn collect(mut pipe: impl Read + Send + 'static, output: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = pipe.read(&mut bytes) {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            if output.len() + len > OUTPUT_MAX {
                let excess = output.len() + len - OUTPUT_MAX;
                output.drain(OUTPUT_MAX / 2..(OUTPUT_MAX / 2 + excess).min(OUTPUT_MAX));
            }
            output.extend_from_slice(&bytes[..len]);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Program {
        let ending = Rc::new(Ending::by(&[]).expect("a descriptor"));
        Program::start(&["sh", "-c", script], &ending).expect("there is a shell")
    }

    fn run(script: &str, limit: Duration) -> Ended {
        start(script).wait(limit)
    }

    #[test]
    fn output_and_exit_status_of_a_program_are_kept() {
        let ended = run("echo err >&2; echo; printf out; exit 3", Duration::from_secs(10));
        assert!(!ended.succeeded() && !ended.is_missing());
        assert_eq!(ended.output, "\nout\nerr\n", "complaints last");
        assert_eq!((ended.last_lines(9).len(), ended.how()), (2, "exit status: 3".to_owned()));
        assert!(run("no-such-program", Duration::from_secs(10)).is_missing());
    }

    #[test]
    fn a_program_is_ended_at_its_time_limit() {
        let began = Instant::now();
        let ended = run("trap '' TERM; sleep 60 & wait; sleep 60 & wait", Duration::from_millis(50));
        assert_eq!(ended.how(), "took too long");
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn waiting_ends_soon_after_the_peer_program_has_ended() {
        let began = Instant::now();
        let mut ended = start("exit 1");
        assert_eq!(start("sleep 60").wait_beside(&mut ended, Duration::from_secs(50)).how(), "took too long");
        assert!((ALONE_MAX..Duration::from_secs(30)).contains(&began.elapsed()));
        assert!(start("sleep 0.2").wait_beside(&mut ended, Duration::from_secs(50)).succeeded());
    }

    #[test]
    fn of_much_output_the_beginning_and_the_end_are_kept() {
        let ended = run("echo first; seq 100000; echo last", Duration::from_secs(60));
        assert!(ended.output.starts_with("first\n") && ended.output.ends_with("last\n"));
        assert!(ended.output.len() <= OUTPUT_MAX);
    }
}
