//! Finds the moments at which the peer executed a message, if both ends of a connection are in the trace.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use super::model::{Execution, Message, Slice, Trace, What};

/// Receiving end: its address and number, the address and number of its peer.
type Key = (IpAddr, u32, IpAddr, u32);

/// One receive batch, and which request was expected afterwards.
type Arrival = (Execution, u64);

/// Sets [`Message::execution`] and [`Message::executed`] wherever the trace has the peer.
pub(super) fn join(trace: &mut Trace) {
    let arrivals = arrivals(trace);
    for message in trace.messages.iter_mut().filter(|message| message.is_acknowledged()) {
        message.arrives(arrivals.get(&message.peer_end()));
    }
}

/// As [`join`], for a trace of one host, and also for unreliable connections: if newer events have replaced
/// the connection of a peer, finds the peer by its queue pair number, provided that only one process has this
/// number.
pub(crate) fn join_by_number(trace: &mut Trace) {
    const UNSPECIFIED: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let mut arrivals = arrivals(trace);
    let is_nameless = |(_, _, remote, peer): &Key| (*remote, *peer) == (UNSPECIFIED, 0);
    arrivals
        .retain(|key, all| !is_nameless(key) || all.windows(2).all(|pair| pair[0].0.pid == pair[1].0.pid));
    for message in trace.messages.iter_mut().filter(|message| message.is_of_connection()) {
        let nameless = (UNSPECIFIED, message.peer, UNSPECIFIED, 0);
        message.arrives(arrivals.get(&message.peer_end()).or_else(|| arrivals.get(&nameless)));
    }
}

/// The receive batches of each end, in the order of time.
fn arrivals(trace: &Trace) -> HashMap<Key, Vec<Arrival>> {
    let mut arrivals: HashMap<Key, Vec<Arrival>> = HashMap::new();
    for Slice { pid, begin, end, what, .. } in &trace.slices {
        if let What::Receive { qpn, peer, local, remote, executed } = what {
            let batch = Execution { pid: *pid, begin: *begin, end: *end, is_certain: true };
            arrivals.entry((*local, *qpn, *remote, *peer)).or_default().push((batch, *executed));
        }
    }
    let order = |(batch, executed): &Arrival| (batch.begin, batch.end, *executed);
    arrivals.values_mut().for_each(|arrivals| arrivals.sort_unstable_by_key(order));
    arrivals
}

impl Message {
    /// Whether the peer acknowledges it.
    fn is_acknowledged(&self) -> bool {
        ["RC", "XRC_SEND"].contains(&&*self.service) && self.first < self.end
    }

    /// Whether both ends number its packets alike.
    fn is_of_connection(&self) -> bool {
        self.is_acknowledged() || self.service == "UC"
    }

    fn peer_end(&self) -> Key {
        (self.remote, self.peer, self.local, self.qpn)
    }

    fn arrives(&mut self, arrivals: Option<&Vec<Arrival>>) {
        self.execution = arrivals.and_then(|arrivals| match self.is_acknowledged() {
            true => self.executed_in(arrivals),
            false => self.received_in(arrivals),
        });
        self.executed = self.execution.map(|batch| batch.end);
        // The system call that sends a packet returns after its departure: the peer may be faster.
        for departure in [&mut self.left, &mut self.last] {
            *departure = departure.map(|at| at.min(self.executed.unwrap_or(u64::MAX)).max(self.posted));
        }
    }

    /// The batch that executed its last packet. The numbers begin again with each connection, so only batches
    /// from the post to the completion count.
    fn executed_in(&self, arrivals: &[Arrival]) -> Option<Execution> {
        // The batch with the ACK may have begun before the peer's.
        let until = self.completed.max(self.acked.unwrap_or(0));
        let from = arrivals.partition_point(|(batch, _)| batch.end < self.posted);
        let mut during = arrivals[from..].iter().take_while(|(batch, _)| batch.begin <= until);
        during.find(|(_, executed)| *executed >= self.end).map(|(batch, _)| *batch)
    }

    /// The batch after which an unreliable connection expects a later packet. The sender does not know when
    /// that is, and the receiver knows the PSN of a packet only.
    fn received_in(&self, arrivals: &[Arrival]) -> Option<Execution> {
        const PSNS: u64 = 1 << 24;
        let from = arrivals.partition_point(|(batch, _)| batch.end < self.posted);
        let beyond = |expected: u64| expected.wrapping_sub(self.end) % PSNS;
        let (batch, expected) = arrivals[from..].iter().find(|(_, next)| beyond(*next) < PSNS / 2)?;
        Some(Execution { is_certain: beyond(*expected) == 0, ..*batch })
    }
}
