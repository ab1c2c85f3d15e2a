//! The port of an inherited engine in a forked child: it receives nothing and sends nothing.

use std::io;

use super::{
    Destination, FlowId, FlowKey, Headers, MAX_PACKET, Port, PortProperties, PortReport, RxBatch, RxScope,
};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct DeadPort {
    slot: Box<[u8]>,
}

impl Default for DeadPort {
    fn default() -> DeadPort {
        DeadPort { slot: vec![0; MAX_PACKET].into_boxed_slice() }
    }
}

impl Port for DeadPort {
    fn open_flow(&mut self, _key: &FlowKey, _to: Destination) -> io::Result<FlowId> {
        Err(io::Error::from_raw_os_error(libc::ENETDOWN))
    }

    fn close_flow(&mut self, _flow: FlowId) {}

    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        self.open_flow(key, Destination::Elsewhere)
    }

    fn headers(&mut self, _flow: FlowId) -> Option<Headers> {
        None
    }

    fn tx_slot(&mut self) -> &mut [u8] {
        &mut self.slot
    }

    fn tx_commit(&mut self, _flow: FlowId, _len: usize) {}

    fn flush(&mut self) -> usize {
        0
    }

    fn recv(&mut self, _scope: RxScope, _f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        0
    }

    fn hear_groups(&mut self, _hear: bool) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENETDOWN))
    }

    fn properties(&self) -> PortProperties {
        PortProperties::default()
    }

    fn report(&self) -> PortReport {
        PortReport { description: "none, after a fork".to_owned(), ..PortReport::default() }
    }
}
