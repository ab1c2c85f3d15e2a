//! Finds the moments at which the peer executed a message, if both ends of a connection are in the trace.

use std::collections::HashMap;
use std::net::IpAddr;

use super::model::{Execution, Message, Slice, Trace, What};

/// Receiving end: its address and number, the address and number of its peer.
type Key = (IpAddr, u32, IpAddr, u32);

/// One receive batch, and which request was expected afterwards.
type Arrival = (Execution, u64);

/// Sets [`Message::execution`] and [`Message::executed`] wherever the trace has the peer.
pub(crate) fn join(trace: &mut Trace) {
    let mut arrivals: HashMap<Key, Vec<Arrival>> = HashMap::new();
    for Slice { pid, begin, end, what, .. } in &trace.slices {
        if let What::Receive { qpn, peer, local, remote, executed } = what {
            let batch = Execution { pid: *pid, begin: *begin, end: *end };
            arrivals.entry((*local, *qpn, *remote, *peer)).or_default().push((batch, *executed));
        }
    }
    let order = |(batch, executed): &Arrival| (batch.begin, batch.end, *executed);
    arrivals.values_mut().for_each(|arrivals| arrivals.sort_unstable_by_key(order));
    for message in trace.messages.iter_mut().filter(|message| message.is_acknowledged()) {
        let key = (message.remote, message.peer, message.local, message.qpn);
        message.execution = arrivals.get(&key).and_then(|arrivals| message.executed_in(arrivals));
        message.executed = message.execution.map(|batch| batch.end);
    }
}

impl Message {
    /// Whether the peer acknowledges it, so that both number its packets alike.
    fn is_acknowledged(&self) -> bool {
        self.service == "RC" && self.first < self.end
    }

    /// The batch that executed its last packet. The numbers begin again with each connection, so only batches
    /// from the post to the ACK count.
    fn executed_in(&self, arrivals: &[Arrival]) -> Option<Execution> {
        let until = self.acked.unwrap_or(self.completed);
        let from = arrivals.partition_point(|(batch, _)| batch.end < self.posted);
        let mut during = arrivals[from..].iter().take_while(|(batch, _)| batch.begin <= until);
        during.find(|(_, executed)| *executed >= self.end).map(|(batch, _)| *batch)
    }
}
