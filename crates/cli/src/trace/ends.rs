//! Finds the moments at which the peer executed a message, if both ends of a connection are in the trace.

use std::collections::HashMap;
use std::net::IpAddr;

use super::model::{Message, Slice, Trace, What};

/// Receiving end: its address and number, the address and number of its peer.
type Key = (IpAddr, u32, IpAddr, u32);

/// One receive batch: when it began, when it was processed, and which request was expected afterwards.
type Arrival = (u64, u64, u64);

/// Sets [`Message::executed`] wherever the trace has the peer.
pub(super) fn join(trace: &mut Trace) {
    let mut arrivals: HashMap<Key, Vec<Arrival>> = HashMap::new();
    for Slice { begin, end, what, .. } in &trace.slices {
        if let What::Receive { qpn, peer, local, remote, executed } = what {
            arrivals.entry((*local, *qpn, *remote, *peer)).or_default().push((*begin, *end, *executed));
        }
    }
    arrivals.values_mut().for_each(|arrivals| arrivals.sort_unstable());
    for message in trace.messages.iter_mut().filter(|message| message.is_acknowledged()) {
        let key = (message.remote, message.peer, message.local, message.qpn);
        message.executed = arrivals.get(&key).and_then(|arrivals| message.executed_in(arrivals));
    }
}

impl Message {
    /// Whether the peer acknowledges it, so that both number its packets alike.
    fn is_acknowledged(&self) -> bool {
        self.service == "RC" && self.first < self.end
    }

    /// The end of the batch that executed its last packet. The numbers begin again with each connection, so
    /// only batches from the post to the ACK count.
    fn executed_in(&self, arrivals: &[Arrival]) -> Option<u64> {
        let until = self.acked.unwrap_or(self.completed);
        let from = arrivals.partition_point(|(_, end, _)| *end < self.posted);
        let during = arrivals[from..].iter().take_while(|(begin, ..)| *begin <= until);
        during.copied().find(|(.., executed)| *executed >= self.end).map(|(_, end, _)| end)
    }
}
