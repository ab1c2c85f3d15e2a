//! Selecting the packets that an impairment applies to.

use std::fmt;

use wire::Opcode;

/// A kind of packet, and a range of that kind: the fifth WRITE, every acknowledgement from the second on.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Chosen {
    /// A bit for each opcode.
    opcodes: [u64; 4],
    /// Number of the first selected packet, from 1.
    first: u64,
    /// Number of the last one.
    last: u64,
}

impl Chosen {
    /// Every packet.
    pub const ALL: Chosen = Chosen { opcodes: [u64::MAX; 4], first: 1, last: u64::MAX };

    /// Selects only packets of opcodes with these words in their names (`write-last`, `ack`); `None` if there
    /// is no such opcode.
    #[must_use]
    pub fn opcode(self, words: &str) -> Option<Chosen> {
        let mut opcodes = [0; 4];
        let called = |opcode: &u8| Opcode(*opcode).row().is_some_and(|row| row.is_called(words));
        for opcode in (0..=u8::MAX).filter(called) {
            opcodes[usize::from(opcode / 64)] |= 1 << (opcode % 64);
        }
        (opcodes != [0; 4] && !words.is_empty()).then_some(Chosen { opcodes, ..self })
    }

    /// Selects only the `first` to the `last` of them, both included and counted from 1; `None` if the
    /// range is empty.
    #[must_use]
    pub fn nth(self, first: u64, last: u64) -> Option<Chosen> {
        (first >= 1 && first <= last).then_some(Chosen { first, last, ..self })
    }

    /// Parses `3`, `3..5`, or `3..` for the third and all later ones.
    pub(super) fn nth_from(self, text: &str) -> Option<Chosen> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let last = if last.is_empty() { Some(u64::MAX) } else { last.parse().ok() };
        self.nth(first.parse().ok()?, last?)
    }

    /// Whether a packet with this opcode is selected; `seen` counts those of its kind, this one included.
    #[inline]
    pub(super) fn admits(&self, opcode: u8, seen: &mut u64) -> bool {
        let kind = self.opcodes[usize::from(opcode / 64)] >> (opcode % 64) & 1;
        *seen += kind;
        kind == 1 && (self.first..=self.last).contains(seen)
    }
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: u32 = self.opcodes.iter().map(|word| word.count_ones()).sum();
        write!(f, "{}..={} of {kinds} opcodes", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_their_kind() {
        let chosen = Chosen::ALL.opcode("write-last").and_then(|kind| kind.nth_from("2..3")).unwrap();
        let mut seen = 0;
        let kinds =
            [Opcode::RC_WRITE_LAST, Opcode::RC_SEND_LAST, Opcode::UC_WRITE_LAST, Opcode::RC_WRITE_LAST];
        let admitted = kinds.map(|opcode| chosen.admits(opcode.0, &mut seen));
        assert_eq!(admitted, [false, false, true, true]);
        assert!(!chosen.admits(Opcode::RC_WRITE_LAST.0, &mut seen));
        assert_eq!(seen, 4);
    }

    #[test]
    fn an_empty_selection_is_refused() {
        let all = Chosen::ALL;
        assert!(["", "wrte", "write-acknowledge"].iter().all(|words| all.opcode(words).is_none()));
        assert!(["", "0", "2..1", "..", "x", "-1"].iter().all(|text| all.nth_from(text).is_none()));
        assert_eq!(all.nth_from("3"), all.nth(3, 3));
        assert_eq!(all.nth_from("3.."), all.nth(3, u64::MAX));
    }
}
