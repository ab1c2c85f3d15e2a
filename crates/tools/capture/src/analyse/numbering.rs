//! Whether a sender numbers its packets. The standard leaves the IPv4 identification of packets with DF to
//! the sender: it may be constant, zero, random or counted for each burst (RFC 6864). It tells the order of
//! packets, and packets from copies, only if the sender was seen to count.

/// A larger step between two packets is no counting: other packets of the host have the numbers between them.
/// Two random numbers follow each other by so little in one of 256 cases.
const STEP_MAX: u16 = 256;
/// Steps after which a sender counts.
const STEPS_MIN: u8 = 3;

/// The identifications of the packets in sequence of a direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbering {
    last: Option<u16>,
    steps: u8,
    /// Once it repeated a number or went back.
    never: bool,
}

impl Numbering {
    /// Adds the identification of the next packet in sequence.
    pub(super) fn add(&mut self, id: u16) {
        let Some(last) = self.last.replace(id) else {
            // Unconnected sockets of Linux number the packets of a burst from 0 on.
            self.never = id == 0;
            return;
        };
        let step = id.wrapping_sub(last);
        self.never |= step.cast_signed() <= 0;
        if (1..=STEP_MAX).contains(&step) {
            self.steps = self.steps.saturating_add(1);
        }
    }

    /// Whether the sender was seen to count, so that the identification `id` says something.
    pub(super) fn tells(self, id: u16) -> bool {
        self.steps >= STEPS_MIN && !self.never && id != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ids: impl IntoIterator<Item = u16>) -> bool {
        let mut numbering = Numbering::default();
        ids.into_iter().for_each(|id| numbering.add(id));
        numbering.tells(1)
    }

    #[test]
    fn only_numbers_that_grow_in_small_steps_count() {
        assert!(counts([65_533, 65_534, 1, 5]), "around zero, with packets of others between");
        assert!(!counts([7, 8, 9]), "too few");
        assert!(!counts(0..9) && !counts([0; 9]) && !counts([77; 9]), "constant");
        assert!(!counts([0, 1, 2, 3, 4, 0, 1, 2, 3, 4]), "for each burst");
        assert!(!counts([9000, 41_000, 1234, 64_000, 50_000, 7]), "random");
    }
}
