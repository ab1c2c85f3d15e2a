//! Times of connection management: IBTA exponents as Linux converts them, and Linux's fixed figures.

use core::time::Duration;

/// Response timeout put into every REQ, both ways (Linux cma.c CMA_CM_RESPONSE_TIMEOUT).
pub const RESPONSE_TIMEOUT: u8 = 20;
/// Packet life time of a RoCE path (Linux 6.12 cma.c CMA_IBOE_PACKET_LIFETIME).
pub const PACKET_LIFE_TIME: u8 = 16;
/// Retransmissions of one message after the first try (Linux cma.c CMA_MAX_CM_RETRIES).
pub const MAX_CM_RETRIES: u8 = 15;
/// Service timeout in an MRA: 65.5 s (Linux cma.c CMA_CM_MRA_SETTING).
pub const MRA_SERVICE_TIMEOUT: u8 = 24;
/// How long a request may wait for its listener. perftest with `-R` connects twice in a row and relies on
/// address resolution in the kernel to be slower than the second listen of its peer; roxie resolves addresses
/// at once.
pub const LISTENER_WAIT: Duration = Duration::from_millis(50);
/// Longest value of a five-bit timeout field.
const TIMEOUT_MAX: u8 = 31;

/// The waiting time an exponent means: 4.096 us * 2^t, in Linux's rounding 2^(t-8) ms and at least 1 ms.
#[must_use]
pub const fn wait(t: u8) -> Duration {
    let t = if t > TIMEOUT_MAX { TIMEOUT_MAX } else { t };
    Duration::from_millis(1 << t.saturating_sub(8))
}

/// Local ACK timeout for a QP from the peer's ACK delay and the packet life time, five bits each (Linux cm.c
/// cm_ack_timeout).
#[must_use]
pub const fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let (ack_delay, packet_life_time) = (ack_delay & TIMEOUT_MAX, packet_life_time & TIMEOUT_MAX);
    let mut t = packet_life_time + 1;
    if t >= ack_delay {
        t += (ack_delay >= t - 1) as u8;
    } else {
        t = ack_delay + (t + 1 >= ack_delay) as u8;
    }
    if t > TIMEOUT_MAX { TIMEOUT_MAX } else { t }
}

/// How long the active side waits for the REP: two packet life times and the peer's response
/// time.
#[must_use]
pub const fn req_timeout(packet_life_time: u8) -> Duration {
    let life = wait(packet_life_time);
    Duration::from_millis(2 * life.as_millis() as u64 + wait(RESPONSE_TIMEOUT).as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_rounded_as_linux_rounds_them() {
        assert_eq!(wait(20), Duration::from_millis(4096));
        assert_eq!(wait(18), Duration::from_millis(1024));
        assert_eq!(wait(16), Duration::from_millis(256));
        assert_eq!(wait(0), Duration::from_millis(1));
        assert_eq!(wait(255), wait(31));
    }

    #[test]
    fn ack_timeouts_are_those_seen_from_linux() {
        assert_eq!(ack_timeout(15, 16), 17, "6.12, 6.18, 7.2");
        assert_eq!(ack_timeout(15, 18), 19, "6.1");
        assert_eq!(ack_timeout(20, 16), 20);
        assert_eq!(ack_timeout(18, 16), 19);
        assert_eq!(ack_timeout(31, 31), 31);
        assert_eq!(ack_timeout(255, 255), 31, "five bits count");
        assert_eq!(ack_timeout(0, 0), 2);
    }

    #[test]
    fn a_req_waits_as_long_as_linux_waits() {
        assert_eq!(req_timeout(16), Duration::from_millis(4608));
        assert_eq!(req_timeout(18), Duration::from_millis(6144));
    }
}
