//! Accounting of the receiving half of a stream: unread data in the ring, and grants for the peer.
//!
//! The ring is granted in halves. When half of the ring has been read, the peer gets a grant of one half.
//! When half of its messages have been read, the peer gets credits for as many. One message carries both.

use std::collections::VecDeque;

use crate::Violation;
use crate::outbound::{Pieces, pieces};

/// State of the receiving half.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Size of the ring, read offset, and unread bytes.
    ring: usize,
    at: usize,
    unread: usize,
    /// Unread bytes of each message, oldest first.
    messages: VecDeque<u32>,
    /// Bytes that the peer may still write, and bytes read that are not granted again.
    granted: usize,
    freed: usize,
    /// Offset of the half to grant next.
    next_half: usize,
    /// Messages that the peer may have in flight or unread.
    credits: u16,
    /// Number of messages read, and the number at which credits are due, modulo 2^16.
    read: u16,
    due_at: u16,
}

/// A grant for the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Grant {
    /// Number of the message at which its credits end.
    pub(super) limit: u16,
    /// Memory that it may write: offset and length.
    pub(super) half: Option<(usize, usize)>,
}

impl Inbound {
    /// Creates a ring of `ring` bytes, an even number. The first half and `credits` are granted in the
    /// [`wire::rsocket::Hello`].
    pub(super) fn new(ring: usize, credits: u16) -> Self {
        let half = ring / 2;
        Self {
            ring,
            at: 0,
            unread: 0,
            messages: VecDeque::with_capacity(usize::from(credits)),
            granted: half,
            freed: half,
            next_half: half,
            credits,
            read: 0,
            due_at: credits / 2,
        }
    }

    /// Records a message of `len` bytes.
    pub(super) fn arrived(&mut self, len: u32) -> Result<(), Violation> {
        if self.messages.len() == usize::from(self.credits) || len as usize > self.granted {
            return Err(Violation);
        }
        self.granted -= len as usize;
        self.unread += len as usize;
        self.messages.push_back(len);
        if self.unread == 0 {
            self.consume(0);
        }
        Ok(())
    }

    /// Records a message that uses a credit but carries no stream data.
    pub(super) fn arrived_iomap(&mut self) {
        self.read = self.read.wrapping_add(1);
    }

    /// Returns the number of unread bytes.
    pub(super) fn unread(&self) -> usize {
        self.unread
    }

    /// Returns the position of the next `len` bytes, at most [`unread`](Self::unread).
    pub(super) fn front(&self, len: usize) -> Pieces {
        pieces(self.ring, self.at, len)
    }

    /// Records that the application has read `len` bytes.
    pub(super) fn consume(&mut self, len: usize) {
        self.at = (self.at + len) % self.ring;
        self.unread -= len;
        self.freed += len;
        let mut left = len;
        while let Some(first) = self.messages.front_mut() {
            if (*first as usize) > left {
                *first -= left as u32;
                break;
            }
            left -= *first as usize;
            self.messages.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }

    /// True if a grant is due.
    pub(super) fn grant_due(&self) -> bool {
        self.freed >= self.ring / 2 || self.read.wrapping_sub(self.due_at) < 1 << 15
    }

    /// Returns the grant that is due.
    pub(super) fn grant(&mut self) -> Grant {
        self.due_at = self.read.wrapping_add(self.credits / 2);
        let limit = self.read.wrapping_add(self.credits);
        let half = self.ring / 2;
        if self.freed < half {
            return Grant { limit, half: None };
        }
        self.freed -= half;
        self.granted += half;
        let offset = self.next_half;
        self.next_half = half - offset;
        Grant { limit, half: Some((offset, half)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_is_granted_at_once_and_each_half_again_when_it_was_read() {
        let mut inbound = Inbound::new(100, 8);
        assert!(inbound.grant_due());
        assert_eq!(inbound.grant(), Grant { limit: 8, half: Some((50, 50)) });
        assert!(!inbound.grant_due());
        inbound.arrived(50).unwrap();
        inbound.arrived(30).unwrap();
        inbound.consume(49);
        assert!(!inbound.grant_due());
        inbound.consume(1);
        assert_eq!(inbound.grant(), Grant { limit: 9, half: Some((0, 50)) });
        inbound.arrived(20).unwrap();
        inbound.arrived(50).unwrap();
        assert_eq!(inbound.front(70), [(50, 50), (0, 20)]);
        inbound.consume(70);
        assert_eq!(inbound.grant(), Grant { limit: 11, half: Some((50, 50)) });
    }

    #[test]
    fn credits_are_due_when_half_of_the_messages_are_read() {
        let mut inbound = Inbound::new(1000, 4);
        inbound.grant();
        for _ in 0..3 {
            inbound.arrived(1).unwrap();
        }
        inbound.consume(1);
        assert!(!inbound.grant_due());
        inbound.consume(1);
        assert!(inbound.grant_due());
        assert_eq!(inbound.grant(), Grant { limit: 6, half: None });
        assert!(!inbound.grant_due());
    }

    #[test]
    fn a_message_counts_as_read_when_all_of_it_is_read() {
        let mut inbound = Inbound::new(1000, 2);
        inbound.grant();
        inbound.arrived(10).unwrap();
        inbound.consume(9);
        assert_eq!(inbound.unread(), 1);
        assert!(!inbound.grant_due());
        inbound.consume(1);
        assert!(inbound.grant_due());
    }

    #[test]
    fn an_empty_message_is_read_with_the_one_before_it() {
        let mut inbound = Inbound::new(1000, 2);
        inbound.grant();
        inbound.arrived(1).unwrap();
        inbound.arrived(0).unwrap();
        inbound.consume(1);
        assert_eq!(inbound.grant().limit, 4);
        inbound.arrived(0).unwrap();
        assert_eq!(inbound.grant().limit, 5);
    }

    #[test]
    fn a_peer_that_exceeds_its_grant_or_credits_is_a_violation() {
        let mut inbound = Inbound::new(100, 2);
        assert!(inbound.arrived(51).is_err());
        inbound.arrived(25).unwrap();
        inbound.arrived(20).unwrap();
        assert!(inbound.arrived(1).is_err(), "a third message with two credits");
    }
}
