//! Live traffic as a capture file that is still being written: everything that reads files reads it.
//!
//! A [`Listener`] takes packets, of a network interface or of a process; reading makes pcapng of them.

mod attach;
mod netdev;
mod pace;
mod process;
mod split;

use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use sys::{PollFd, lower_priority, now_ns, poll};
use wire::capture::{Conditions, LinkType, Seen};

use super::filter::{Filter, FilterArgs, Management};
use super::write::{NewPacket, Writer};
use crate::ending::Ending;
use crate::failure::{During, Outcome};
use netdev::Netdev;
pub(crate) use pace::PERCENT;
use pace::Pace;
use process::Process;
pub(crate) use split::Splitter;

/// What to listen to.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A network interface.
    Netdev(String),
    /// A process with a device of roxie.
    Process(u32),
}

/// What to copy, and how long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Bytes of each packet; all if not given.
    pub(crate) snap: Option<u32>,
    /// Which packets. Whoever copies them looks at what headers tell, whoever takes the copies at all of it.
    pub(crate) filter: FilterArgs,
    /// Only the first of so many packets.
    pub(crate) sample: Option<u32>,
    /// How long to listen; for ever if not given.
    pub(crate) duration: Option<Duration>,
    /// MiB of copies that wait for their reader; enough if not given.
    pub(crate) buffer: Option<u32>,
    /// Percent of a CPU that reading may take from others; [`PERCENT`] if not given.
    pub(crate) cpu: Option<u32>,
}

impl Wanted {
    /// What is not copied of the connections that are; nothing if all of it is.
    fn left_out(&self, place: &Place) -> Option<String> {
        let sample = self.sample.map(|sample| format!("a sample, the first of every {sample} packets"));
        let chosen = (!self.filter.conditions().is_empty()).then(|| "packets chosen by a filter".to_owned());
        // A packet names its receiver alone; a process knows both ends of its queue pairs.
        let one_way = (matches!(place, Place::Netdev(_)) && !self.filter.qp.is_empty())
            .then(|| "of connections made before, what goes to the named queue pairs".to_owned());
        let parts: Vec<String> = sample.into_iter().chain(chosen).chain(one_way).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Who is told of a packet.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&NewPacket<'_>);

/// Something that can be listened to.
trait Listener: Send {
    /// Names of the interfaces that packets are of.
    fn interfaces(&self) -> Vec<String>;

    /// Hands over what has come in, some of it; 0 if there was nothing.
    fn take(&mut self, each: Each<'_>) -> io::Result<usize>;

    /// How long to wait when there was nothing.
    fn wait_ns(&self) -> u64;

    /// Packets lost so far, by interface.
    fn lost(&self) -> io::Result<Vec<u64>>;

    /// Whether anything may still come.
    fn is_there(&self) -> io::Result<bool>;

    /// Takes no more in. What has come is still there.
    fn stop(&mut self);

    /// What to say when nothing will.
    fn farewell(&self) -> String;

    /// Whether that is how it should end.
    fn may_end(&self) -> bool;
}

/// How long what came before the end is taken, should ever more come.
const LAST_NS: u64 = 2_000_000_000;
/// The lowest priority that still runs on a busy machine.
const NICE: i32 = 19;

/// What is said if what is listened to has gone although it should not.
pub(super) const CUT_OFF: &str = "the capture has ended before it should";

/// A listener, and the file it fills.
pub(super) struct Live {
    listener: Box<dyn Listener>,
    /// Unless every packet is wanted.
    filter: Option<Filter>,
    left_out: Option<String>,
    pace: Pace,
    ending: Ending,
    writer: Writer<Vec<u8>>,
    packets: u64,
    /// What [`read`](Read::read) has yet to hand over, and from where on.
    ready: Vec<u8>,
    at: usize,
    /// On CLOCK_MONOTONIC.
    end_ns: Option<u64>,
    ended: bool,
    gone: bool,
}

impl Place {
    /// What a message calls it.
    pub(super) fn name(&self) -> String {
        match self {
            Place::Netdev(name) => name.clone(),
            Place::Process(pid) => format!("process {pid}"),
        }
    }
}

impl Live {
    /// Starts to listen.
    pub(super) fn new(place: &Place, wanted: &Wanted) -> Outcome<Self> {
        // From here on a signal ends the capture, not the process: what was captured is still written.
        let ending = Ending::by(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
        // A file that may not grow any more is an error of write(2), which takes off what is attached.
        let mut full = SigSet::empty();
        full.add(Signal::SIGXFSZ);
        full.thread_block().during("signals")?;
        // Whoever looks on waits: what finds no room then is counted. It fails if somebody has asked for less already.
        let _ = lower_priority(NICE);
        let pace = Pace::new(wanted.cpu.unwrap_or(PERCENT));
        let listener: Box<dyn Listener> = match place {
            Place::Netdev(name) => Box::new(Netdev::new(name, wanted)?),
            Place::Process(pid) => Box::new(Process::new(*pid, wanted)?),
        };
        let management = match place {
            Place::Netdev(_) => Management::All,
            Place::Process(_) => Management::AllOfChosen,
        };
        let filter = (!wanted.filter.is_empty()).then(|| Filter::new(wanted.filter.clone(), management));
        let left_out = wanted.left_out(place);
        let writer = section(&*listener, left_out.as_deref())?;
        Ok(Self {
            listener,
            filter,
            left_out,
            pace,
            ending,
            writer,
            packets: 0,
            ready: Vec::new(),
            at: 0,
            end_ns: wanted.duration.map(|duration| now_ns().saturating_add(duration.as_nanos() as u64)),
            ended: false,
            gone: false,
        })
    }

    /// Takes what is there; how much that was.
    fn take(&mut self) -> io::Result<usize> {
        let Self { listener, filter, writer, packets, .. } = self;
        listener.take(&mut |packet| {
            if let Some(filter) = filter {
                let seen = Seen::parse(LinkType::ETHERNET, packet.data);
                if !seen.is_ok_and(|seen| filter.admits(&seen)) {
                    return;
                }
            }
            *packets += 1;
            // Into memory: only a packet that no file can hold fails, and those end at 64 KiB.
            let _never = writer.packet(packet, []);
        })
    }

    /// Whether this is the end: the time is over, a signal has come, or there is nothing left to listen to. Waits for packets
    /// if none came just now, and where the reader has had its share.
    fn is_over(&mut self, came: usize) -> io::Result<bool> {
        let wait_ns = if came > 0 { self.pace.rest_ns() } else { self.listener.wait_ns() };
        let left = self.end_ns.map_or(wait_ns, |end| end.saturating_sub(now_ns()).min(wait_ns));
        let mut fds = [PollFd::readable(self.ending.as_fd().as_raw_fd())];
        poll(&mut fds, Some(left))?;
        let signalled = fds[0].is_ready() && self.ending.has_come()?;
        if came == 0 && !self.listener.is_there()? {
            self.gone = true;
            eprintln!("roxie: {}", self.listener.farewell());
        }
        Ok(signalled || self.gone || self.end_ns.is_some_and(|end| now_ns() >= end))
    }

    /// What came before the end, and what was lost until then.
    fn last_words(&mut self) -> io::Result<()> {
        self.listener.stop();
        let until_ns = now_ns() + LAST_NS;
        while self.take()? > 0 && (self.gone || now_ns() < until_ns) {}
        for (interface, lost) in self.listener.lost()?.into_iter().enumerate() {
            if lost > 0 {
                self.writer.drops(interface, lost).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Packets taken so far.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether what is listened to has gone although it should not.
    pub(super) fn has_failed(&self) -> bool {
        self.gone && !self.listener.may_end()
    }

    /// Whether it has left a CPU to others.
    pub(super) fn has_rested(&self) -> bool {
        self.pace.has_rested()
    }

    /// Packets that were lost before they could be taken.
    pub(super) fn lost(&self) -> io::Result<u64> {
        Ok(self.listener.lost()?.iter().sum())
    }

    /// What comes next begins a file of its own.
    pub(super) fn next_section(&mut self) -> Outcome {
        self.writer = section(&*self.listener, self.left_out.as_deref())?;
        Ok(())
    }

    /// The next bytes of the file, whole blocks; waits for some. None are left once the capture has ended.
    pub(super) fn next_bytes(&mut self) -> io::Result<&[u8]> {
        self.ready.clear();
        while self.writer.output().is_empty() && !self.ended {
            let came = self.take()?;
            self.ended = self.is_over(came)?;
            if self.ended {
                self.last_words()?;
            }
        }
        mem::swap(&mut self.ready, self.writer.output());
        Ok(&self.ready)
    }
}

impl Read for Live {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.ready.len() {
            self.at = 0;
            self.next_bytes()?;
            if self.ready.is_empty() && self.has_failed() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, CUT_OFF));
            }
        }
        let len = buffer.len().min(self.ready.len() - self.at);
        buffer[..len].copy_from_slice(&self.ready[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// The conditions that whoever copies packets can look at. Whether an ICRC is wrong takes whole packets: if those are wanted, so are
/// all of them.
fn headers_tell(wanted: &Wanted) -> Conditions {
    let conditions = wanted.filter.conditions();
    Conditions { errors: conditions.errors && wanted.snap.is_some(), ..conditions }
}

/// The beginning of a file.
fn section(listener: &dyn Listener, left_out: Option<&str>) -> Outcome<Writer<Vec<u8>>> {
    let mut writer = Writer::new(Vec::new()).during("pcapng")?;
    for name in listener.interfaces() {
        writer.interface(Some(&name), left_out, LinkType::ETHERNET).during("pcapng")?;
    }
    Ok(writer)
}

#[cfg(test)]
mod tests;
