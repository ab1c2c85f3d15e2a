//! The memory in which SENDs were placed: finds the receive that a SEND has taken.
//!
//! Both ends of a connection count the messages that take receives, so a SEND has the receive with its
//! number. On an unreliable connection that holds if no message was lost. A datagram has no number.

use std::collections::{HashMap, VecDeque};

use roxie::trace::{Access, Entry, Landing, Use};
use sys::trace::Recording;

use crate::trace::model::{Execution, Message};

use super::area::{Area, Effect, Post, Queue, Receive};

/// Bytes of the GRH area in front of a datagram.
const GRH_BYTES: u32 = 40;

/// A receive that was polled: [`Landing::time_ns`] is the time of the poll.
struct Landed {
    process: u32,
    landing: Landing,
}

/// The receives that have completed.
#[derive(Default)]
pub(super) struct Landings {
    /// By receiving queue pair and number; more than one if the connection was reset.
    numbered: HashMap<(Queue, u32), Vec<Landed>>,
    /// How many messages a queue pair has received that take receives, if all of them are recorded.
    received: HashMap<Queue, usize>,
    /// How many messages a queue pair has posted that take receives, if all of them are recorded.
    sent: HashMap<Queue, usize>,
    /// By the post of the datagram.
    datagrams: HashMap<Post, Landed>,
}

impl Landings {
    /// `messages` in the order of their posts.
    pub(super) fn new(
        recordings: &[Recording],
        messages: &[Message],
        accesses: &HashMap<Post, Access>,
    ) -> Self {
        let (mut connected, mut arrived) = (HashMap::<Queue, Vec<Landed>>::new(), HashMap::new());
        for landed in recordings.iter().flat_map(landings) {
            let Landing { qpn, src_qp, bytes, number, .. } = landed.landing;
            if number > 0 {
                connected.entry((landed.process, qpn.value())).or_default().push(landed);
            } else {
                let path: Path = (src_qp.value(), qpn.value(), bytes);
                arrived.entry(path).or_insert_with(Vec::new).push(landed);
            }
        }
        let mut all = Self { datagrams: datagrams(arrived, messages, accesses), ..Self::default() };
        all.sent = sent(accesses);
        for (queue, mut landed) in connected {
            landed.sort_by_key(|landed| landed.landing.time_ns);
            let number = |at: usize| landed[at].landing.number;
            // Threads that poll one completion queue may have counted in another order than they polled.
            let is_next = |at: usize| number(at) == 1 || number(at) == number(at - 1).wrapping_add(1);
            if !(1..landed.len()).all(is_next) {
                continue;
            }
            if number(landed.len() - 1) as usize == landed.len() {
                all.received.insert(queue, landed.len());
            }
            for landed in landed {
                all.numbered.entry((queue, landed.landing.number)).or_default().push(landed);
            }
        }
        all
    }

    /// Returns the memory in which a SEND was placed. Of a datagram it also tells the peer and the time.
    pub(super) fn areas(&self, message: &mut Message, access: &Access, post: Post) -> Vec<Area> {
        let landed = match &*message.service {
            "UD" => self.datagrams.get(&post),
            _ => self.of_connection(message, access, post.0),
        };
        let Some(Landed { process, landing }) = landed else { return Vec::new() };
        if message.service == "UD" {
            // It was executed at some time between these.
            let begin = landing.posted_ns.max(message.posted);
            let (pid, end) = (*process, landing.time_ns.max(begin));
            message.peer = landing.qpn.value();
            message.execution = Some(Execution { pid, begin, end, is_certain: true });
        }
        let receive = Some(Receive { posted: landing.posted_ns, site: landing.site });
        let mut rest = u64::from(landing.bytes);
        let pieces = landing.local.iter().map(|(first, length)| {
            let length = rest.min(u64::from(*length));
            rest -= length;
            let end = first.saturating_add(length);
            Area { process: *process, first: *first, end, effect: Effect::Write, is_local: false, receive }
        });
        pieces.filter(|area| area.first < area.end).collect()
    }

    /// The receive with the number of a SEND, if no other one can be it.
    fn of_connection(&self, message: &Message, access: &Access, from: Queue) -> Option<&Landed> {
        let Execution { pid, begin, end, .. } = message.execution?;
        let to = (pid, message.peer);
        if message.service == "UC" {
            let received = self.received.get(&to)?;
            self.sent.get(&from).filter(|sent| *sent == received)?;
        }
        let mut fitting =
            self.numbered.get(&(to, access.number))?.iter().filter(|Landed { landing, .. }| {
                let is_in_time = landing.posted_ns <= end && begin <= landing.time_ns;
                is_in_time && landing.srqn == access.remote.1.0 && landing.bytes == message.bytes
            });
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

/// The receives that a thread has polled.
fn landings(recording: &Recording) -> Vec<Landed> {
    let mut found: Vec<Landed> = Vec::new();
    let mut polls: HashMap<u32, VecDeque<u64>> = HashMap::new();
    let mut is_last = false;
    for event in &recording.events {
        if let Some(landing) = Landing::parse(event) {
            let poll = polls.get_mut(&landing.qpn.value()).and_then(VecDeque::pop_front);
            let time_ns = poll.unwrap_or(landing.time_ns);
            found.push(Landed { process: recording.process, landing: Landing { time_ns, ..landing } });
            is_last = true;
        } else if let Some(Entry::Poll { qpn, is_receive: true, status: 0, .. }) = Entry::parse(event) {
            polls.entry(qpn.value()).or_default().push_back(event.time_ns);
        } else if Access::parse(event).is_some() {
            is_last = false;
        } else if let Some(last) = found.last_mut().filter(|_| is_last) {
            last.landing.extend(event);
        }
    }
    found
}

/// Numbers of the sending and of the receiving queue pair, and the bytes of a receive.
type Path = (u32, u32, u32);

/// The receives of datagrams.
fn datagrams(
    arrived: HashMap<Path, Vec<Landed>>,
    messages: &[Message],
    accesses: &HashMap<Post, Access>,
) -> HashMap<Post, Landed> {
    let posted = datagrams_posted(messages, accesses);
    let mut found = HashMap::new();
    for (path, mut all) in arrived {
        all.sort_by_key(|landed| landed.landing.time_ns);
        let Some(posted) = posted.get(&path) else { continue };
        // As long as each datagram of these ends and this length arrives before the next one is posted.
        let is_only = |(at, (landed, _)): &(usize, (Landed, &Post))| {
            posted.partition_point(|post| post.2 <= landed.landing.time_ns) == at + 1
        };
        let pairs = all.into_iter().zip(posted).enumerate().take_while(is_only);
        found.extend(pairs.map(|(_, (landed, post))| (*post, landed)));
    }
    found
}

/// The posts of datagrams, in their order.
fn datagrams_posted(messages: &[Message], accesses: &HashMap<Post, Access>) -> HashMap<Path, Vec<Post>> {
    let mut posted: HashMap<Path, Vec<Post>> = HashMap::new();
    for message in messages.iter().filter(|message| message.service == "UD") {
        let post = ((message.pid, message.qpn), message.first, message.posted);
        if let Some(access) = accesses.get(&post).filter(|access| access.does == Use::Send) {
            let path = (message.qpn, access.remote.1.0, message.bytes.saturating_add(GRH_BYTES));
            posted.entry(path).or_default().push(post);
        }
    }
    posted
}

/// How many messages that take receives a queue pair has posted, if they are all there.
fn sent(accesses: &HashMap<Post, Access>) -> HashMap<Queue, usize> {
    let mut sent: HashMap<Queue, (usize, u32)> = HashMap::new();
    for ((queue, ..), access) in accesses.iter().filter(|(_, access)| access.number > 0) {
        let (count, last) = sent.entry(*queue).or_default();
        (*count, *last) = (*count + 1, access.number.max(*last));
    }
    sent.retain(|_, (count, last)| *count == *last as usize);
    sent.into_iter().map(|(queue, (count, _))| (queue, count)).collect()
}

#[cfg(test)]
mod tests;
