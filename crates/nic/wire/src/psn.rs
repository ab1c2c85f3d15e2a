//! 24-bit numbers: packet sequence numbers, queue pair numbers, message sequence numbers (IBA 9.7.1).
//!
//! PSNs form a circle of 2^24 numbers. They do not implement `Ord`, because order on a circle is not
//! transitive. The protocol needs the distance between two numbers, [`Psn::distance_from`].

use core::fmt;

const MASK: u32 = 0x00ff_ffff;

/// Methods of every 24-bit number.
macro_rules! number {
    ($ty:ident) => {
        impl $ty {
            /// Returns the low 24 bits of `value` as a number of this type.
            #[must_use]
            #[inline]
            pub const fn new(value: u32) -> Self {
                Self(value & MASK)
            }

            /// Returns the number, below 2^24.
            #[must_use]
            #[inline]
            pub const fn value(self) -> u32 {
                self.0
            }
        }
    };
}

/// Methods of a number on a circle.
macro_rules! circle {
    ($ty:ident) => {
        number!($ty);

        impl $ty {
            /// Returns the number `n` places further on the circle.
            #[must_use]
            #[inline]
            pub const fn advance(self, n: u32) -> Self {
                Self::new(self.0.wrapping_add(n))
            }

            /// Returns the shortest distance from `other` to `self`, in -2^23 .. 2^23. The exactly opposite
            /// number is at -2^23.
            #[must_use]
            #[inline]
            pub const fn distance_from(self, other: Self) -> i32 {
                // Moving the 24-bit difference to the top of the word lets the arithmetic shift extend its
                // sign.
                ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
            }
        }

        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// Packet sequence number, 24 bits.
///
/// ```
/// use roxie_wire::Psn;
///
/// let last = Psn::new(0xffffff);
/// let next = last.advance(1);
/// assert_eq!(next, Psn::new(0));
/// assert_eq!(next.distance_from(last), 1);
/// assert!(last.is_before(next));
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Psn(u32);

circle!(Psn);

impl Psn {
    /// Returns whether `self` precedes `other` by at most half the circle.
    #[must_use]
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }
}

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Qpn(u32);

number!(Qpn);

impl Qpn {
    /// QP 1, the general services interface, which connection management uses.
    pub const GSI: Self = Self(1);
    /// Destination QP of multicast packets.
    pub const MULTICAST: Self = Self(MASK);
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Message sequence number: requests that the responder has completed, modulo 2^24.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Msn(u32);

circle!(Msn);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_number_is_followed_by_zero() {
        assert_eq!(Psn::new(0xff_ffff).advance(1), Psn::new(0));
        assert_eq!(Psn::new(0x0100_0000), Psn::new(0));
        assert_eq!(Psn::new(0).distance_from(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).distance_from(Psn::new(0)), -1);
        assert!(Psn::new(0xff_ffff).is_before(Psn::new(0)));
        assert!(!Psn::new(7).is_before(Psn::new(7)));
    }

    #[test]
    fn the_opposite_number_precedes_in_both_directions() {
        let (a, b) = (Psn::new(5), Psn::new(5).advance(1 << 23));
        assert_eq!(a.distance_from(b), -(1 << 23));
        assert_eq!(b.distance_from(a), -(1 << 23));
    }

    /// Every distance, from numbers around both ends and the middle of the circle.
    #[test]
    fn every_distance_is_what_a_walk_around_the_circle_says() {
        for start in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
            let start = Psn::new(start);
            let mut walker = start;
            for steps in 0..1i32 << 24 {
                let expected = if steps < 1 << 23 { steps } else { steps - (1 << 24) };
                assert_eq!(walker.distance_from(start), expected);
                assert_eq!(walker.is_before(start), expected < 0);
                assert_eq!(walker, start.advance(steps as u32));
                walker = walker.advance(1);
            }
            assert_eq!(walker, start);
        }
    }

    proptest! {
        #[test]
        fn distance_undoes_advance(start: u32, n in 0u32..1 << 23) {
            let a = Psn::new(start);
            let b = a.advance(n);
            prop_assert_eq!(b.distance_from(a), n as i32);
            prop_assert_eq!(a.distance_from(b), -(n as i32));
            prop_assert_eq!(a.is_before(b), n != 0);
        }

        #[test]
        fn two_advances_equal_one_by_their_sum(start: u32, m: u32, n: u32) {
            let a = Psn::new(start);
            prop_assert_eq!(a.advance(m).advance(n), a.advance(m.wrapping_add(n)));
            prop_assert!(a.advance(m).value() < 1 << 24);
        }
    }
}
