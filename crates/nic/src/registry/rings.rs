//! Rings in memory between members: offered and accepted over connections, and gone with them.
//!
//! A ring leads one way, from the member that offered it. So of two members each offers one, when it first has
//! something to send to the other; until it is accepted, and after its end, packets take the network. A process that dies
//! closes its connections, however it dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::record::{Record, SHORT_MAX};
use super::serve::Server;
use sys;
use sys::byte_ring::{Consumer, Producer};

/// What has become of rings.
#[derive(Debug)]
pub(crate) enum RingEvent {
    /// Another member writes into this one for us.
    Offered { token: u64, ring: Box<Consumer> },
    /// The one we have offered is read.
    Accepted { token: u64 },
    /// The other member has hung up: it has ended, or does not want the ring.
    Ended { token: u64 },
}

/// Where those who serve connections leave news.
#[derive(Debug, Default)]
pub(super) struct RingEvents {
    events: Mutex<Vec<RingEvent>>,
    has_events: AtomicBool,
}

/// A member's rings.
#[derive(Debug)]
pub(crate) struct Rings {
    server: Arc<Server>,
    slot: u8,
}

/// The connection that a ring lasts as long as; dropped, the other end learns that it is over.
#[derive(Debug)]
pub(crate) struct RingLink {
    server: Arc<Server>,
    slot: u8,
    token: u64,
    /// `None` where the ring is read.
    connection: Option<Arc<OwnedFd>>,
}

impl RingEvents {
    pub(super) fn put(&self, event: RingEvent) {
        let mut pending = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        pending.push(event);
        self.has_events.store(true, Ordering::Release);
    }

    #[cold]
    fn take(&self) -> Vec<RingEvent> {
        let mut pending = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_events.store(false, Ordering::Relaxed);
        std::mem::take(&mut *pending)
    }
}

impl Rings {
    pub(super) fn new(server: Arc<Server>, slot: u8) -> Rings {
        server.ring_events.get_or_init(RingEvents::default);
        Rings { server, slot }
    }

    /// Offers a new ring to the member with `slot`, which may be our own; there will be news of it. Does not wait.
    ///
    /// # Errors
    /// `ECONNREFUSED` if nobody has the slot, `EPERM` if another user has; `EAGAIN` if too many want something of it;
    /// what [`Producer::create`] says.
    pub(crate) fn offer(&self, slot: u8) -> io::Result<(Producer, RingLink)> {
        let connection = sys::connect_seqpacket(&self.server.config.slot_name(slot))?;
        if sys::peer_credentials(connection.as_fd())?.uid != sys::effective_uid() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let (producer, ring) = Producer::create()?;
        let mut out = [0; SHORT_MAX];
        let len = Record::Offer.emit(Some(self.slot), &mut out);
        sys::send_record(connection.as_fd(), &out[..len], &[], &[ring.as_fd()])?;
        let (token, connection) = self.server.watch_ring(connection)?;
        let server = Arc::clone(&self.server);
        Ok((producer, RingLink { server, slot: self.slot, token, connection: Some(connection) }))
    }

    /// Whether [`take_news`](Self::take_news) has something to say.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.server.ring_events.get().is_some_and(|events| events.has_events.load(Ordering::Relaxed))
    }

    /// What has happened since the last call; one load if nothing has.
    #[inline]
    pub(crate) fn take_events(&self) -> Vec<RingEvent> {
        match self.server.ring_events.get() {
            Some(events) if events.has_events.load(Ordering::Acquire) => events.take(),
            _ => Vec::new(),
        }
    }

    /// The connection of a ring that was offered to us.
    pub(crate) fn link(&self, token: u64) -> RingLink {
        RingLink { server: Arc::clone(&self.server), slot: self.slot, token, connection: None }
    }
}

impl RingLink {
    /// What the news call it.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Wakes whoever reads the ring, which has said that it sleeps.
    #[cold]
    pub(crate) fn wake(&self) {
        let Some(connection) = &self.connection else { return };
        let mut out = [0; SHORT_MAX];
        let len = Record::Wake.emit(Some(self.slot), &mut out);
        // Somebody who has so much to read that there is no room for this will not sleep; one that is gone will not wake.
        let _awake = sys::send_record(connection.as_fd(), &out[..len], &[], &[]);
    }
}

impl Drop for RingLink {
    fn drop(&mut self) {
        self.server.end_ring(self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Membership;
    use super::super::tests::{members_of, new_domain, while_serving};
    use super::*;

    /// News of `rings`, once there are some.
    fn events_of(rings: &Rings, member: &Membership) -> Vec<RingEvent> {
        for _ in 0..2000 {
            member.poll_listener(&mut |_| {});
            let events = rings.take_events();
            if !events.is_empty() {
                return events;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("no events");
    }

    #[test]
    fn a_ring_is_offered_accepted_used_and_gone_with_its_maker() {
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
    fn a_member_that_takes_no_rings_hangs_up() {
        let members = members_of(&new_domain(), 2);
        let ours = members[0].rings();
        let (_producer, link) = ours.offer(members[1].slot()).unwrap();
        members[1].poll_listener(&mut |_| {});
        let events = events_of(&ours, &members[0]);
        assert!(matches!(events[..], [RingEvent::Ended { token }] if token == link.token()), "{events:?}");
        let nobody = (0..super::super::SLOTS).find(|slot| members.iter().all(|m| m.slot() != *slot)).unwrap();
        assert_eq!(ours.offer(nobody).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn what_is_no_ring_is_not_taken() {
        let config = new_domain();
        let members = members_of(&config, 1);
        let rings = members[0].rings();
        let no_ring = sys::memory_file(c"roxie-test").unwrap();
        let mut record = [0; SHORT_MAX];
        let len = Record::Offer.emit(None, &mut record);
        for passed in [&[][..], &[no_ring.as_fd()]] {
            let connection = sys::connect_seqpacket(&config.slot_name(members[0].slot())).unwrap();
            sys::send_record(connection.as_fd(), &record[..len], &[], passed).unwrap();
            while_serving(&[&members[0]], || {
                let mut fds = [sys::PollFd::readable(std::os::fd::AsRawFd::as_raw_fd(&connection))];
                assert_eq!(sys::poll(&mut fds, Some(5_000_000_000)).unwrap(), 1);
            });
            let received =
                sys::recv_record(connection.as_fd(), &mut [0; 64], &mut Vec::new(), false).unwrap();
            assert_eq!(received.len, 0, "it has hung up");
        }
        assert!(rings.take_events().is_empty());
    }
}
