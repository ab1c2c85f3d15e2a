//! The receiving half of a stream, as numbers: what has arrived in the ring, and what the peer may be told.
//!
//! The ring is granted in halves. When half of it has been read, the peer gets that half again; when half of the messages
//! it may send have been read, it gets credits for as many. Both are told in one message.

use std::collections::VecDeque;

use super::Violation;
use super::outbound::{Pieces, pieces};

/// What was received and what may be.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Bytes of the ring, where reading goes on, and how many wait there.
    ring: usize,
    at: usize,
    unread: usize,
    /// Bytes left of each message, oldest first.
    messages: VecDeque<u32>,
    /// Bytes the peer may still write, and bytes read that it does not know of.
    granted: usize,
    freed: usize,
    /// Where the half begins that is granted next.
    next_half: usize,
    /// Messages the peer may have under way.
    credits: u16,
    /// Messages read, and the number of them at which credits are due, modulo 2^16.
    read: u16,
    due_at: u16,
}

/// What the peer is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Grant {
    /// It may send messages up to this number.
    pub(super) limit: u16,
    /// It may write here: offset and length.
    pub(super) half: Option<(usize, usize)>,
}

impl Inbound {
    /// A ring of `ring` bytes, an even number; its first half and `credits` are in the [`wire::rsocket::Hello`].
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

    /// The peer says it wrote `len` bytes.
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

    /// The peer spent a credit on something that is not read.
    pub(super) fn arrived_beside(&mut self) {
        self.read = self.read.wrapping_add(1);
    }

    /// Bytes that can be read.
    pub(super) fn unread(&self) -> usize {
        self.unread
    }

    /// Where the next `len` bytes are, at most [`unread`](Self::unread).
    pub(super) fn front(&self, len: usize) -> Pieces {
        pieces(self.ring, self.at, len)
    }

    /// They were read.
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

    /// Whether the peer should be told something.
    pub(super) fn owes(&self) -> bool {
        self.freed >= self.ring / 2 || self.read.wrapping_sub(self.due_at) < 1 << 15
    }

    /// What that is.
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
    fn the_second_half_is_granted_at_once_and_each_half_when_it_is_read() {
        let mut inbound = Inbound::new(100, 8);
        assert!(inbound.owes());
        assert_eq!(inbound.grant(), Grant { limit: 8, half: Some((50, 50)) });
        assert!(!inbound.owes());
        inbound.arrived(50).unwrap();
        inbound.arrived(30).unwrap();
        inbound.consume(49);
        assert!(!inbound.owes());
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
        assert!(!inbound.owes());
        inbound.consume(1);
        assert!(inbound.owes());
        assert_eq!(inbound.grant(), Grant { limit: 6, half: None });
        assert!(!inbound.owes());
    }

    #[test]
    fn part_of_a_message_is_not_a_message() {
        let mut inbound = Inbound::new(1000, 2);
        inbound.grant();
        inbound.arrived(10).unwrap();
        inbound.consume(9);
        assert_eq!(inbound.unread(), 1);
        assert!(!inbound.owes());
        inbound.consume(1);
        assert!(inbound.owes());
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
    fn a_peer_that_takes_more_than_it_was_given_is_found_out() {
        let mut inbound = Inbound::new(100, 2);
        assert!(inbound.arrived(51).is_err());
        inbound.arrived(25).unwrap();
        inbound.arrived(20).unwrap();
        assert!(inbound.arrived(1).is_err(), "the third of two messages");
    }
}
