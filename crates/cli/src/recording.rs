//! `--capture`: the packets of a command, from the first one on, in a pcapng file.
//!
//! The file is written beside its place and moved there at the end, so that an earlier capture stays until
//! there is another one. A thread of this process reads the copies that the engines make
//! (`roxie_capture::live::CommandCapture`).

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use clap::Args as ClapArgs;
use roxie::recording::{SNAP_VARIABLE, VARIABLE};
use roxie_capture::live::{CommandCapture, Count};
use sys::NamedFile;

use crate::capture::input::snap_to_record;
use crate::command_dir::{CommandDir, Purpose};
use crate::failure::{During, Failure, Outcome};
use roxie_capture::shell::quote;

/// Bytes of the section header that a pcapng file begins with.
const SECTION_LEN: u64 = 28;

/// What to do with the packets of the command.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct RecordingArgs {
    /// Write all packets of the command to FILE, a pcapng file for 'roxie capture' and Wireshark
    ///
    /// Of every process that the command starts, both directions, from the first packet on. The device waits
    /// until its packets are written, a tenth of a second at most; then packets are counted as lost. A
    /// process that outlives the command is captured until the command ends. FILE appears at the end; until
    /// then it is FILE.NUMBER.part, with a random number.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// With --capture: the first N bytes of each packet, 96 at least, or 'headers', which are 128
    #[arg(long, value_name = "N", value_parser = snap_to_record, requires = "capture")]
    capture_snap: Option<u32>,
    /// With --capture: keep FILE only if something failed
    ///
    /// That is another exit status than 0, a signal, a completion with another status than success or 'work
    /// request flushed', an asynchronous event for a failed queue pair; with 'roxie check' also a finding.
    #[arg(long, requires = "capture")]
    on_error: bool,
}

/// A capture before the command starts. What it has created is removed on drop.
pub(crate) struct Prepared {
    capture: CommandCapture,
    snap_len: Option<u32>,
    part: Part,
    socket: PathBuf,
}

/// A capture while the command runs.
pub(crate) struct Running {
    /// None once it was joined.
    thread: Option<JoinHandle<Outcome<Recorded>>>,
    shall_end: Arc<AtomicBool>,
}

/// A complete capture.
#[derive(Debug)]
pub(crate) struct Recorded {
    part: Part,
    count: Count,
    /// Why packets are missing at the end.
    unwritten: Option<io::Error>,
}

/// The file and what becomes of it; removed on drop unless it was moved to its place.
#[derive(Debug)]
struct Part {
    file: File,
    /// Its name until the end, in the directory of its place.
    name: OsString,
    place: NamedFile,
    on_error: bool,
    quiet: bool,
    /// The directory of the socket.
    dir: CommandDir,
}

impl RecordingArgs {
    /// Whether there is to be a capture.
    pub(crate) fn is_wanted(&self) -> bool {
        self.capture.is_some()
    }

    /// Opens file and socket before the command starts; nothing without `--capture`.
    pub(crate) fn prepare(&self, quiet: bool) -> Outcome<Option<Prepared>> {
        let Some(place) = &self.capture else { return Ok(None) };
        let what = format!("--capture {}", place.display());
        if place.as_os_str() == "-" {
            return Err(Failure::new(format!("{what}: standard output is the command's; name a file")));
        }
        // A link stays a link.
        let place = NamedFile::at(place).during(&what)?;
        if let Ok(meta) = place.metadata() {
            if !meta.is_file() {
                return Err(Failure::new(format!("{what}: not a regular file")));
            }
            place.open_to_write().during(&what)?;
        }
        no_other(&place, None)?;
        let mut name = place.name().to_owned();
        name.push(format!(".{:016x}.part", sys::random_u64()));
        let dir = CommandDir::new(Purpose::Capture)?;
        let file = place.dir().create_new(&name, 0o666);
        let file = file.during(&format!("{what}: {}", Path::new(&name).display()))?;
        let part = Part { file, name, place, on_error: self.on_error, quiet, dir };
        part.file.lock().during(&what)?;
        no_other(&part.place, Some(&part.name))?;
        let socket = part.dir.path().join("socket");
        let capture = CommandCapture::new(&socket, self.capture_snap).during(&what)?;
        Ok(Some(Prepared { capture, snap_len: self.capture_snap, part, socket }))
    }
}

impl Prepared {
    /// The environment by which the engines of the command find this process.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let snap = self.snap_len.map(|len| (SNAP_VARIABLE, len.to_string().into()));
        [(VARIABLE, self.socket.clone().into_os_string())].into_iter().chain(snap).collect()
    }

    /// Begins to read. Engines that have started already have waited.
    pub(crate) fn start(self) -> Outcome<Running> {
        let shall_end = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&shall_end);
        let read = move || record(self.capture, self.part, &until);
        let thread = thread::Builder::new().spawn(read).during("a thread that captures")?;
        Ok(Running { thread: Some(thread), shall_end })
    }
}

/// Reads until the end of the command. After a failed write the packets are read and not written: the command
/// must not wait for them.
fn record(mut capture: CommandCapture, mut part: Part, shall_end: &AtomicBool) -> Outcome<Recorded> {
    let mut unwritten = None;
    let mut write = |bytes: &[u8]| {
        if unwritten.is_none() {
            unwritten = part.write(bytes).err();
        }
    };
    let mut has_said = false;
    while !shall_end.load(Ordering::Acquire) {
        write(capture.next_bytes().during("--capture")?);
        if let Some(error) = capture.trouble().filter(|_| !has_said) {
            say!("roxie: --capture: a process cannot connect yet: {error}");
            has_said = true;
        }
    }
    write(&capture.end().during("--capture")?);
    Ok(Recorded { part, count: capture.count(), unwritten })
}

impl Running {
    /// Reads what the command has left, and ends.
    pub(crate) fn end(mut self) -> Outcome<Recorded> {
        self.join().expect("joined once")
    }

    fn join(&mut self) -> Option<Outcome<Recorded>> {
        self.shall_end.store(true, Ordering::Release);
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Running {
    /// An error of the supervisor: removes the file and the directory of the socket, which the thread owns.
    fn drop(&mut self) {
        drop(self.join());
    }
}

impl Recorded {
    /// Moves the file to its place, or removes it if it has no packets or is not wanted; says what is next.
    pub(crate) fn finish(self, has_failed: bool) -> Outcome {
        let Self { part, count, unwritten } = self;
        if count.packets == 0 {
            let why = match count.engines {
                0 => "no process of the command started the device, or none could be captured",
                _ => "the command sent and received no packet",
            };
            part.say(&format!("nothing was captured: {why}"));
            return Ok(());
        }
        if part.on_error && !has_failed && !count.has_failed {
            return Ok(());
        }
        let place = part.place.path().display().to_string();
        if unwritten.is_some() && part.file.metadata().is_ok_and(|file| file.len() < SECTION_LEN) {
            part.say(&format!("nothing was captured: no packet could be written to {place}"));
            return Ok(());
        }
        part.place.dir().rename(&part.name, part.place.name()).during(&format!("--capture {place}"))?;
        let lost = if count.lost > 0 { format!(", {} lost", count.lost) } else { String::new() };
        match unwritten {
            Some(error) => part.say(&format!("the packets before '{error}' are in {place}")),
            None => {
                let s = if count.packets == 1 { "" } else { "s" };
                part.say(&format!("{} packet{s}{lost} in {place}", count.packets));
            }
        }
        part.say(&format!("next: roxie capture analyse {}", quote(&place)));
        Ok(())
    }
}

impl Part {
    /// Appends whole blocks; on an error as many bytes as fit.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let begin = self.file.stream_position()?;
        self.file.write_all(bytes).inspect_err(|error| {
            say!("roxie: writing {}: {error}: the capture ends here", self.place.path().display());
            let written = self.file.stream_position().unwrap_or(begin);
            self.cut(written);
        })
    }

    /// Makes a file of this length end inside a block, which tells every reader that packets are missing.
    /// Blocks end at multiples of 4 bytes.
    fn cut(&self, len: u64) {
        let short = if len % 4 == 1 { 2 } else { 1 };
        self.file.set_len(len.saturating_sub(short)).ok();
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            say!("roxie: {line}");
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Not there after the move.
        self.place.dir().remove_file(&self.name).ok();
    }
}

/// Fails if another command captures to the same place: the one that ends last would replace the file of the
/// other one. Each holds a lock of its own part.
fn no_other(place: &NamedFile, own: Option<&OsStr>) -> Outcome {
    let shown = place.path();
    let is_part = |file: &OsStr| {
        let rest = file.as_encoded_bytes().strip_prefix(place.name().as_encoded_bytes());
        rest.is_some_and(|rest| rest.starts_with(b".") && rest.ends_with(b".part"))
    };
    for name in place.dir().names().during(&format!("--capture {}", shown.display()))? {
        if !is_part(&name) || Some(&*name) == own {
            continue;
        }
        // The other command may have removed the file by now. Those of other users do not count.
        let is_own = |file: &File| file.metadata().is_ok_and(|meta| meta.uid() == sys::effective_uid());
        let file = place.dir().open(&name).ok().filter(is_own);
        if file.is_some_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))) {
            let text = format!("--capture {}: another command captures to this file", shown.display());
            return Err(Failure::new(text).hint("name another file, or wait until that command has ended"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A place in a new directory.
    fn place(name: &str) -> PathBuf {
        let dir = Path::new("/tmp").join(format!("roxie-recording-{:016x}", sys::random_u64()));
        fs::create_dir(&dir).expect("a directory for the test");
        dir.join(name)
    }

    fn args(place: &Path) -> RecordingArgs {
        RecordingArgs { capture: Some(place.to_owned()), ..RecordingArgs::default() }
    }

    fn clean(place: &Path) {
        fs::remove_dir_all(place.parent().expect("its directory")).expect("cleaned");
    }

    #[test]
    fn an_error_of_the_supervisor_leaves_no_files() {
        let place = place("dropped");
        let prepared = args(&place).prepare(true).expect("a file and a socket").expect("wanted");
        let socket = prepared.socket.clone();
        drop(prepared.start());
        assert!(!socket.exists());
        assert_eq!(fs::read_dir(place.parent().expect("its directory")).expect("listed").count(), 0);
        clean(&place);
    }

    /// Also of a command in another process-ID namespace, where numbers are the same.
    #[test]
    fn a_second_capture_to_the_same_file_is_an_error() {
        let place = place("same");
        let part = PathBuf::from(format!("{}.1.part", place.display()));
        let other = File::create(&part).expect("a file");
        assert!(args(&place).prepare(true).is_ok(), "nothing locks the file");
        other.lock().expect("locked");
        let error = args(&place).prepare(true).err().expect("captured by the other").to_string();
        assert!(error.contains("another command captures to this file"), "{error}");
        assert_eq!(fs::read_dir(place.parent().expect("its directory")).expect("listed").count(), 1);
        clean(&place);
    }

    /// Readers see that it lacks packets: 'roxie capture analyse' calls it inconclusive.
    #[test]
    fn a_file_that_could_not_be_written_ends_inside_a_block() {
        let place = place("cut");
        let mut part = args(&place).prepare(true).expect("a file and a socket").expect("wanted").part;
        part.write(&[1; 64]).expect("room");
        let path = place.with_file_name(part.name.clone());
        part.file = File::open(&path).expect("there");
        part.file.seek(io::SeekFrom::End(0)).expect("a file");
        assert!(part.write(&[2; 64]).is_err(), "not open for writing");
        assert_eq!(part.file.metadata().expect("there").len(), 64, "nothing to cut it with");
        part.file = File::options().write(true).open(&path).expect("there");
        for (len, cut) in [(64, 63), (61, 59), (63, 62)] {
            part.cut(len);
            assert_eq!(part.file.metadata().expect("there").len(), cut);
        }
        drop(part);
        clean(&place);
    }
}
