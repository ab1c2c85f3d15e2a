//! Shared-memory rings between members, offered and accepted over connections, and closed with them.
//!
//! A ring carries packets in one direction, from the member that offered it. So each of two members offers a
//! ring when it first sends to the other. Packets take the network until the ring is accepted, and again
//! after the ring has ended. The connection breaks when a process dies, so the ring ends then, too.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::identity::Relation;
use super::journal::JournalFile;
use super::meeting;
use super::record::Record;
use super::ring_events::{RingEvent, RingEvents};
use super::serve::Server;
use sys::byte_ring::Producer;

/// The rings of a member.
#[derive(Debug)]
pub(crate) struct Rings {
    server: Arc<Server>,
    journal_file: Arc<JournalFile>,
    slot: u16,
}

/// The connection that carries a ring. Dropping it ends the ring at both ends.
#[derive(Debug)]
pub(crate) struct RingLink {
    server: Arc<Server>,
    slot: u16,
    token: u64,
    /// `None` at the reading end.
    connection: Option<Arc<OwnedFd>>,
}

impl Rings {
    pub(super) fn new(server: Arc<Server>, journal_file: Arc<JournalFile>, slot: u16) -> Rings {
        server.ring_events.get_or_init(RingEvents::default);
        Rings { server, journal_file, slot }
    }

    /// Returns the first slot of the engine that has `slot`, if there is one.
    pub(crate) fn owner(&self, slot: u16) -> Option<u16> {
        self.journal_file.owner(slot)
    }

    /// Offers a new ring to the member with this first slot, which may be this member's own; an event
    /// follows. Does not wait.
    ///
    /// # Errors
    /// `ECONNREFUSED` if the slot is free, `EPERM` if it belongs to another user, `EAGAIN` if its accept
    /// queue is full, and the errors of [`Producer::create`].
    pub(crate) fn offer(&self, slot: u16) -> io::Result<(Producer, RingLink)> {
        let (connection, peer) = meeting::connect(&self.server.group.slot(slot))?;
        if peer.relation != Relation::Same {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let (producer, ring) = Producer::create()?;
        Record::Offer.send(&connection, Some(self.slot), &[ring.as_fd()])?;
        let (token, connection) = self.server.watch_ring(connection)?;
        let server = Arc::clone(&self.server);
        Ok((producer, RingLink { server, slot: self.slot, token, connection: Some(connection) }))
    }

    /// True if [`take_events`](Self::take_events) will return an event.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.server.ring_events.get().is_some_and(RingEvents::is_pending)
    }

    /// Returns the events since the last call; costs one load if there are none.
    #[inline]
    pub(crate) fn take_events(&self) -> Vec<RingEvent> {
        match self.server.ring_events.get() {
            Some(events) if events.is_pending() => events.take(),
            _ => Vec::new(),
        }
    }

    /// Returns the connection of a ring that another member offered.
    pub(crate) fn link(&self, token: u64) -> RingLink {
        RingLink { server: Arc::clone(&self.server), slot: self.slot, token, connection: None }
    }
}

impl RingLink {
    /// The number that identifies this ring in events.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Wakes the reader of the ring, which has announced that it sleeps.
    #[cold]
    pub(crate) fn wake(&self) {
        let Some(connection) = &self.connection else { return };
        // A reader with a full socket is not asleep; a reader that has ended cannot be woken.
        let _awake = Record::Wake.send(connection, Some(self.slot), &[]);
    }
}

impl Drop for RingLink {
    fn drop(&mut self) {
        self.server.remove(self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{members_of, new_domain, while_serving};
    use super::super::{Membership, Registry};
    use super::*;

    /// Waits for events of `rings`.
    fn events_of(rings: &Rings, member: &Membership) -> Vec<RingEvent> {
        for _ in 0..2000 {
            member.poll_listener(&mut |_| {});
            let events = rings.take_events();
            if !events.is_empty() {
                return events;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("no ring event within 2 s");
    }

    #[test]
    fn a_ring_is_offered_accepted_and_used_and_ends_with_its_producer() {
        let members = members_of(&new_domain(), 2);
        let [ours, theirs] = [members[0].rings(), members[1].rings()];
        let (mut producer, link) = ours.offer(members[1].slot()).unwrap();
        let mut offered = events_of(&theirs, &members[1]);
        let Some(RingEvent::Offered { token, mut ring }) = offered.pop() else { panic!("{offered:?}") };
        let _link = theirs.link(token);
        let accepted = events_of(&ours, &members[0]);
        assert!(
            matches!(accepted[..], [RingEvent::Accepted { token }] if token == link.token()),
            "{accepted:?}"
        );
        assert!(producer.write(0, b"hello"));
        producer.publish(5);
        let mut bytes = [0; 5];
        assert_eq!((ring.available(), ring.read(0, &mut bytes), &bytes), (Ok(5), true, b"hello"));
        drop(link);
        let ended = events_of(&theirs, &members[1]);
        assert!(matches!(ended[..], [RingEvent::Ended { token: ended }] if ended == token), "{ended:?}");
    }

    #[test]
    fn a_member_without_rings_closes_the_connection_of_an_offer() {
        let members = members_of(&new_domain(), 2);
        let ours = members[0].rings();
        let (_producer, link) = ours.offer(members[1].slot()).unwrap();
        members[1].poll_listener(&mut |_| {});
        let events = events_of(&ours, &members[0]);
        assert!(matches!(events[..], [RingEvent::Ended { token }] if token == link.token()), "{events:?}");
        let free_slot =
            (0..super::super::SLOTS).find(|slot| members.iter().all(|m| m.slot() != *slot)).unwrap();
        assert_eq!(ours.offer(free_slot).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn an_offer_without_a_valid_ring_is_rejected() {
        let config = new_domain();
        let members = members_of(&config, 1);
        let rings = members[0].rings();
        let no_ring = sys::memory_file(c"roxie-test").unwrap();
        for passed in [&[][..], &[no_ring.as_fd()]] {
            let connection =
                sys::connect_seqpacket(&members[0].server.group.slot(members[0].slot())).unwrap();
            Record::Offer.send(&connection, None, passed).unwrap();
            while_serving(&[&members[0]], || {
                let mut fds = [sys::PollFd::readable(std::os::fd::AsRawFd::as_raw_fd(&connection))];
                assert_eq!(sys::poll(&mut fds, Some(5_000_000_000)).unwrap(), 1);
            });
            let received =
                sys::recv_record(connection.as_fd(), &mut [0; 64], &mut Vec::new(), false).unwrap();
            assert_eq!(received.len, 0, "the member closed the connection");
        }
        assert!(rings.take_events().is_empty());
    }
}
