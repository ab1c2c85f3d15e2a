//! Time: a number of nanoseconds that the owner passes in.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point on the owner's monotonic clock, in nanoseconds since an origin that only the owner knows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The earlier of two times, of which either may be absent.
    #[must_use]
    #[inline]
    pub fn earliest(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// `self` plus a number of nanoseconds; saturates.
    #[must_use]
    #[inline]
    pub const fn plus_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, delay: Duration) -> Self {
        self.plus_ns(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, delay: Duration) {
        *self = *self + delay;
    }
}

impl Sub for Instant {
    type Output = Duration;
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Local ACK timeout of the 5-bit code `timeout`: 4.096 us x 2^timeout. `None` for 0, which means never (IBA
/// 9.7.6.1.3).
#[must_use]
#[inline]
pub const fn ack_timeout_ns(timeout: u8) -> Option<u64> {
    if timeout == 0 { None } else { Some(4096 << (timeout & 31)) }
}

/// The second and each further timeout of a silence takes this long where the standard lets it. Reason: a
/// peer that gets no CPU for most of a second keeps its connection. With `timeout` 14 and `retry_cnt` 7, the
/// values of many programs, the requester gives up after 1.8 s; with equal timeouts it would after 537 ms.
/// Half: 0.9 s. Double: 1.9 s, the limit of the standard.
const FURTHER_TIMEOUT_NS: u64 = 250_000_000;
/// A timeout may take this many times the time that its code says (IBA 9.7.6.1.3).
const TIMEOUT_STRETCH_MAX: u64 = 4;

/// The local ACK timeout of the 5-bit code `timeout` once the peer has been silent for one: 250 ms, but
/// neither less than [`ack_timeout_ns`] nor more than four times that (IBA 9.7.6.1.3). `None` for 0.
///
/// ```
/// use roxie_transport::further_timeout_ns;
///
/// assert_eq!(further_timeout_ns(14), Some(250_000_000));
/// assert_eq!(further_timeout_ns(20), Some(4096 << 20));
/// ```
#[must_use]
#[inline]
pub fn further_timeout_ns(timeout: u8) -> Option<u64> {
    ack_timeout_ns(timeout).map(|first_ns| FURTHER_TIMEOUT_NS.clamp(first_ns, TIMEOUT_STRETCH_MAX * first_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_double_from_4096_ns() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8_192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(4096 << 31));
    }

    #[test]
    fn instants_saturate_instead_of_wrapping() {
        assert_eq!(Instant(u64::MAX) + Duration::from_secs(1), Instant(u64::MAX));
        assert_eq!(Instant(5) - Instant(9), Duration::ZERO);
    }
}
