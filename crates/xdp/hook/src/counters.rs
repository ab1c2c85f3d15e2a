//! Verdict counters, under the names that drivers use.

use super::Verdict;
use roxie::status::Row;

macro_rules! hook_counters {
    ($($(#[doc = $doc:literal])* $field:ident = $rx:literal $tx:literal,)*) => {
        /// Verdicts of one hook. The device's counters have the prefix `rx_xdp_` (ingress) or `tx_xdp_`
        /// (egress).
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct HookCounters {
            $($(#[doc = $doc])* pub $field: u64,)*
        }

        impl HookCounters {
            /// Name and value of each counter.
            #[must_use]
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }

            /// The values only.
            pub(super) fn values(&self) -> Vec<u64> {
                vec![$(self.$field,)*]
            }

            /// The inverse of `values`; `None` if `next` has too few.
            pub(super) fn from_values(mut next: impl FnMut() -> Option<u64>) -> Option<HookCounters> {
                Some(HookCounters { $($field: next()?,)* })
            }

            pub(super) fn rx_rows(&self) -> Vec<Row> {
                vec![$(($rx, self.$field),)*]
            }

            pub(super) fn tx_rows(&self) -> Vec<Row> {
                vec![$(($tx, self.$field),)*]
            }

            pub(super) fn absorb(&mut self, other: &HookCounters) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

impl HookCounters {
    /// Counts a verdict; returns whether the packet continues.
    pub(super) fn count(&mut self, verdict: Verdict) -> bool {
        let (counter, goes_on) = match verdict {
            Verdict::Pass => (&mut self.pass, true),
            Verdict::Tx => (&mut self.tx, true),
            Verdict::Redirect(_) => (&mut self.redirect, true),
            Verdict::Drop => (&mut self.drop, false),
            Verdict::Aborted => (&mut self.aborted, false),
            Verdict::Invalid => (&mut self.invalid, false),
        };
        *counter += 1;
        goes_on
    }

    /// Counts passed packets of `frame_len` bytes each.
    pub(super) fn count_passed(&mut self, packets: u64, frame_len: u64) {
        self.packets += packets;
        self.bytes += packets * frame_len;
        self.pass += packets;
    }

    /// Counts a packet that was to be held back.
    pub(super) fn hold(&mut self, kept: bool) {
        *if kept { &mut self.held } else { &mut self.drop } += 1;
    }
}

hook_counters! {
    /// Packets seen.
    packets = "rx_xdp_packets" "tx_xdp_packets",
    /// Their bytes, Ethernet header to ICRC.
    bytes = "rx_xdp_bytes" "tx_xdp_bytes",
    /// PASS.
    pass = "rx_xdp_pass" "tx_xdp_pass",
    /// DROP.
    drop = "rx_xdp_drop" "tx_xdp_drop",
    /// ABORTED, and programs that were ended for an invalid access.
    aborted = "rx_xdp_aborted" "tx_xdp_aborted",
    /// Invalid verdicts, or verdicts not valid for this hook; dropped.
    invalid = "rx_xdp_invalid" "tx_xdp_invalid",
    /// Passed or sent back, but the changed packet is no RoCE packet, or cannot be sent; dropped.
    malformed = "rx_xdp_malformed" "tx_xdp_malformed",
    /// TX.
    tx = "rx_xdp_tx" "tx_xdp_tx",
    /// REDIRECT.
    redirect = "rx_xdp_redirect" "tx_xdp_redirect",
    /// Redirects without a valid target; dropped.
    redirect_errors = "rx_xdp_redirect_errors" "tx_xdp_redirect_errors",
    /// Held back for a while by a native stage.
    held = "rx_xdp_held" "tx_xdp_held",
    /// Passed twice by a native stage.
    doubled = "rx_xdp_doubled" "tx_xdp_doubled",
}
