//! The NAK that the responder owes, and which NAK it has sent for the packet it expects (IBA 9.7.5.2).

use wire::{NakCode, Syndrome};

/// A NAK that has not left yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nak {
    pub(super) syndrome: Syndrome,
    /// Number of the packet that it names; it acknowledges everything before.
    pub(super) position: u64,
    /// It refuses a request for good and leaves even in the error state.
    is_fatal: bool,
}

/// NAKs of a responder.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NakState {
    due: Option<Nak>,
    /// A NAK was sent (or is due), and the expected packet has not arrived since.
    is_sent: bool,
    /// That NAK is an RNR NAK.
    is_rnr: bool,
}

impl NakState {
    /// The packet at `expected` is missing.
    pub(super) fn sequence_error(&mut self, expected: u64) {
        self.set(Syndrome::Nak(NakCode::PsnSequenceError), expected, false);
    }

    /// The responder is not ready for the packet at `expected`.
    pub(super) fn not_ready(&mut self, expected: u64, timer: u8) {
        self.set(Syndrome::RnrNak(timer), expected, false);
    }

    /// The request at `position` is refused for good.
    pub(super) fn refuse(&mut self, position: u64, code: NakCode) {
        self.set(Syndrome::Nak(code), position, true);
    }

    fn set(&mut self, syndrome: Syndrome, position: u64, is_fatal: bool) {
        let is_rnr = matches!(syndrome, Syndrome::RnrNak(_));
        *self = Self { due: Some(Nak { syndrome, position, is_fatal }), is_sent: true, is_rnr };
    }

    /// The expected packet has arrived: a NAK for it that has not left is dropped.
    #[inline]
    pub(super) fn expected_arrived(&mut self) {
        if self.is_sent {
            *self = Self::default();
        }
    }

    /// Whether a NAK is due.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Takes the NAK that is due.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Nak> {
        self.due.take()
    }

    /// Whether the NAK that is due leaves even in the error state.
    pub(super) fn is_fatal_due(&self) -> bool {
        self.due.is_some_and(|nak| nak.is_fatal)
    }

    /// Whether the peer was NAKed for the expected packet.
    pub(super) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether the peer was told to wait before it retransmits the expected packet.
    pub(super) fn is_rnr_sent(&self) -> bool {
        self.is_rnr
    }
}
