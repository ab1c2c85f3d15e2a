//! Every tunable of the scheduler: its unit, its source, and the effects of half and double the value.
//!
//! `crates/lab/sim/tests/tuning.rs` simulates devices with each field at half and at double its value.
//! Figures come from two virtual CPUs (AMD EPYC and Intel Xeon, Linux 6.18).

/// Declares the struct, its defaults and its fields by name, so that a simulation can scale each of them.
macro_rules! tuning {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr,)*) => {
        /// The tunables of one engine; [`Tuning::default`] is what every device uses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Tuning {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Default for Tuning {
            fn default() -> Self {
                Self { $($name: $value,)* }
            }
        }

        impl Tuning {
            /// Names of the fields, in order.
            pub const FIELDS: &[&str] = &[$(stringify!($name),)*];

            /// These tunables with the field `name` multiplied by `numerator / denominator`, at least 1.
            /// `None` if there is no such field.
            #[must_use]
            pub fn scaled(mut self, name: &str, numerator: u64, denominator: u64) -> Option<Self> {
                match name {
                    $(stringify!($name) => {
                        let scaled = (self.$name as u64).saturating_mul(numerator) / denominator.max(1);
                        self.$name = <$type>::try_from(scaled.max(1)).unwrap_or(<$type>::MAX);
                    })*
                    _ => return None,
                }
                Some(self)
            }
        }
    };
}

tuning! {
    /// Packets of one transmit quantum: two bursts of 62 full packets. Half: the system call of each burst
    /// carries less. Double: the other queue pairs of the engine wait longer for their quantum.
    quantum_pkts: usize = 124,
    /// Payload bytes of a full burst: 62 packets of 1 KiB with headers fill a UDP datagram of 64 KiB. Half:
    /// half as many bytes for each system call. Double: the kernel cannot take it as one burst.
    burst_bytes: usize = 62 * 1024,
    /// Posted packets that leave although an ACK is expected. Linux takes 128 segments (64 before 6.9).
    /// Half: 8-byte messages cost more system calls. Double: more than one burst.
    batch_pkts: usize = 96,
    /// Posted payload bytes that leave although an ACK is expected: two bursts. Half: one burst at a time,
    /// and the peer starts earlier. Double: the peer waits for four bursts.
    batch_bytes: usize = 2 * 62 * 1024,
    /// Work requests in one post list that leave at once. Half: short lists cost a system call each.
    /// Double: lists of 32 wait for the next poll.
    list_wrs: usize = 32,
    /// Unsignaled work requests before a signaled one that then leaves at once: the application waits for
    /// that completion. Half: applications that signal every eighth message send bursts of eight. Double:
    /// an application that signals every 16th message waits for the next poll.
    unsignaled_run: u32 = 16,
    /// Packets in flight below which a post leaves at once. A ping-pong has one or two messages in flight,
    /// a stream has dozens. Half: a ping-pong with two messages in flight waits for the next poll. Double:
    /// a stream starts with eight single packets.
    isolated_pkts: usize = 4,
    /// Polls of other completion queues during which a CQ that was left with entries still counts as
    /// backlogged. UCX polls two to three empty queues each time it takes completions. Half: UCX sends
    /// bursts of 16. Double: an application that stops polling that CQ sends four polls later.
    backlog_polls: u8 = 4,
    /// Interval (ns) at which a sleeping thread checks whether the port accepts packets again. A 10 Gbit/s
    /// NIC sends 125 KB in it, half of a send buffer. Half: twice the wake-ups. Double: the wire may idle.
    port_retry_ns: u64 = 100_000,
    /// Batches that one poll of the engine processes while READ responses are owed. Half: a READ is served by
    /// more polls. Double: the polling thread returns to the application later.
    response_batches: usize = 16,
    /// Batches that the progress thread processes before it serves the registry, CM and control socket.
    /// Half: it serves them more often for each batch. Double: a JOIN waits longer under load.
    progress_batches: usize = 4,
    /// At most this many batches are read before a timer expires: a response that waits in a socket must not
    /// cause a timeout. Half: a slow reader retransmits earlier. Double: a flood delays timers for longer.
    drain_batches: usize = 64,
    /// One inline poll in this many reads the GSI socket; rounded up to a power of two. Half: one more system
    /// call for every 64 polls. Double: connection setup waits for the progress thread more often.
    gsi_polls: u64 = 64,
    /// One inline poll without work in this many reads the clock and checks the timers; rounded up to a power
    /// of two. Reading the clock costs as much as the rest of such a poll (23 ns). Half: empty polls cost
    /// more. Double: timers are up to 8 polls late.
    clock_polls: u64 = 4,
    /// After this many empty polls of its engine, a thread polls another engine of the device that no thread
    /// polls. Half: more empty polls of other engines. Double: an engine without a polling thread waits for
    /// its progress thread more often.
    sibling_polls: usize = 8,
    /// Batches of a poll of another engine. Half: that engine is served in smaller portions. Double: the
    /// thread is away from its own engine for longer.
    sibling_batches: usize = 16,
    /// Polls without packets before the first yield: some 100 us, many round trips of a rack. Half: a
    /// thread with a CPU of its own yields more often. Double: a peer process on the same CPU waits longer
    /// for its first run.
    yield_polls: u32 = 256,
    /// The fewest polls before a yield, with a peer process on the same CPU: some microseconds. Half: a
    /// larger share of the CPU goes to yields. Double: a ping-pong on one CPU is slower.
    yield_polls_min: u32 = 8,
    /// The most polls before a yield, beside a CPU-bound thread: some 10 ms. Half: a slice is lost every 5
    /// ms. Double: a peer that starts to share the CPU is found later.
    yield_polls_max: u32 = 32_768,
    /// A yield (ns) that returns earlier gave the CPU to no other thread: sched_yield(2) takes 0.5 us.
    /// Half: on a slow machine a yield counts as a run of another thread although there was none. Double: a
    /// very short run of a peer is missed.
    free_yield_ns: u64 = 2_000,
    /// A yield (ns) that takes longer went to a CPU-bound thread, which uses its slice of 3 ms; a peer
    /// yields earlier. Half: a busy peer counts as CPU-bound. Double: a CPU-bound thread with a short slice
    /// counts as a peer.
    cpu_bound_yield_ns: u64 = 1_000_000,
    /// Inline polls after a CQ was armed, after which the application counts as awake: some 0.5 ms. Half: a
    /// program that polls for 0.3 ms before it sleeps waits up to `watch_ns` for its first event. Double:
    /// after each time that a program arms a CQ which it does not wait for, the progress thread competes
    /// with its polls for 1 ms.
    awake_polls: u64 = 1_024,
    /// How long (ns) a thread that posts spins for the lock of its engine before it sleeps: about as long as
    /// the work on a full window takes. Half: two threads with one CQ that send 64 KiB have a half of the
    /// rate of one thread, not three quarters. Double: when the holder has no CPU, they spin for 7 % of its
    /// slice of 3 ms, not for 3 %.
    lock_spin_ns: u64 = 100_000,
    /// Longest mean time (ns) for each unit of work of inline polls: a poll is one unit, and each of its
    /// rounds and batches is one more. With less work, a packet would wait longer for the thread than a
    /// wake-up of the progress thread takes. Of threads that wait for the CPU, only their CPU time counts.
    /// Half: a thread that computes for 80 us after each poll gets a progress thread beside it. Double:
    /// packets wait twice as long for a thread that polls rarely.
    poll_gap_ns: u64 = 50_000,
    /// Fewest units of work in the mean that lets the progress thread leave the port. UCX makes two polls in
    /// a row, once in a millisecond, while it waits for a barrier. Half: four polls in a row are enough.
    /// Double: the progress thread works for longer beside a thread that begins to poll.
    poller_work: u64 = 16,
    /// First interval (ns) at which the progress thread checks that application threads still poll. A check
    /// costs the polling thread a wake-up of 20 us: 7 % of its CPU at this interval. Half: 14 %. Double:
    /// packets wait 0.5 ms when an application stops polling.
    watch_ns: u64 = 250_000,
    /// Checks in a row that found polling, after which the interval doubles. Half: rare checks come sooner.
    /// Double: an application that polls steadily pays for frequent checks for longer.
    watch_steady: u8 = 16,
    /// How often the interval doubles: 4 ms at most. Half: 1 ms, 2 % of the CPU. Double: packets wait up to
    /// 64 ms when an application stops polling.
    watch_doublings: u8 = 4,
    /// Checks in a row that found frequent polling, after which earlier unread packets no longer count. Half:
    /// one check is enough. Double: earlier unread packets of a steady poller count for longer.
    steady_watches: u8 = 2,
    /// Checks that ended `Inline` and found unread packets, after which the progress thread serves the port
    /// itself (a takeover): perftest's latency tests over UC poll and then spin on memory. Half: a busy
    /// machine causes takeovers by chance. Double: such a program waits twice as long.
    takeover_rounds: u8 = 8,
    /// Length (ns) of the first takeover; each following one lasts twice as long. Half: the next series of
    /// checks begins sooner. Double: an application that polls again is preempted for longer.
    takeover_ns: u64 = 100_000_000,
    /// The longest takeover (ns). Half and double: as for `takeover_ns`.
    takeover_max_ns: u64 = 1_600_000_000,
    /// A process that used this much CPU time (ns) during a sleep between two checks, without a poll, has a
    /// thread that runs and does not poll. With less, its threads may only wait for the CPU, and a takeover
    /// would preempt them. Half: short runs count. Double: only runs in longer sleeps count.
    ran_ns: u64 = 100_000,
    /// How long (ns) the progress thread spins after traffic: a wake-up from sleep costs 20 to 40 us. Half:
    /// round trips of 25 to 50 us pay a wake-up each. Double: more CPU time for an idle device.
    spin_ns: u64 = 50_000,
    /// Rounds of spinning per round that serves everything; the other rounds read only the sockets of
    /// connections. Half: responses are slower. Double: connection setup waits longer.
    spin_rounds: u32 = 8,
    /// A yield (ns) of the spinning progress thread that takes longer went to a thread that does not yield.
    /// Half: interrupts count. Double: two polling programs are found later.
    crowded_yield_ns: u64 = 50_000,
    /// When yields longer than `crowded_yield_ns` have lost this much CPU time (ns) beyond the tolerated
    /// share, the CPU counts as crowded. Half: interrupts and hypervisors are enough. Double: several slices
    /// of 3 ms are lost first.
    crowded_loss_ns: u64 = 1_000_000,
    /// The tolerated share of lost CPU time: one part in this many. Half: 3 % of the CPU may be lost.
    /// Double: 0.8 %.
    forgiven_share: u64 = 64,
    /// How long (ns) the progress thread does not spin on a crowded CPU: the kernel runs a thread that wakes
    /// up before the others, and a thread that yields after them. Half: two slices are lost ten times a
    /// second. Double: spinning starts later when the CPU is free.
    crowded_ns: u64 = 100_000_000,
    /// Scheduler slice (ns) of the progress thread while it serves the port, the shortest that Linux
    /// grants: it then preempts threads that spin on memory at once. Half: Linux refuses it. Double: later
    /// preemption.
    serving_slice_ns: u64 = 100_000,
    /// Longest sleep (ns): the control plane is served at least this often. Half: more wake-ups of an idle
    /// process. Double: fewer.
    sleep_max_ns: u64 = 500_000_000,
    /// First sleep (ns) after a packet: shorter than the peer's probe timeout (400 us), so that a post need
    /// not wake the thread, which would preempt it while it holds the engine's lock. Half: more wake-ups.
    /// Double: a post soon after a packet wakes the thread.
    brief_sleep_ns: u64 = 250_000,
    /// How often that time doubles until the next packet: 4 ms at most. A post may then have to wake the
    /// thread, once for each sleep. Half: 64 ranks of MPI on two CPUs wake up 64 threads each millisecond.
    /// Double: no effect, because `brief_for_ns` is over before.
    brief_doublings: u8 = 4,
    /// Interval (ns) of the probes to each host with established connections; 0 for none. Half: twice the
    /// packets of an idle process. Double: it takes up to 2.5 s to notice that the last process of a host
    /// was killed.
    keepalive_ns: u64 = 1_000_000_000,
    /// For this time (ns) after traffic, sleeps are short. Half and double: idle wake-ups for 5 and 20 ms.
    brief_for_ns: u64 = 10_000_000,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_can_be_scaled_by_name() {
        for name in Tuning::FIELDS {
            let double = Tuning::default().scaled(name, 2, 1).expect("it is a field");
            assert_ne!(double, Tuning::default(), "{name}");
            assert_eq!(double.scaled(name, 1, 2), Some(Tuning::default()), "{name}");
        }
        assert_eq!(Tuning::default().scaled("no_such_field", 2, 1), None);
        assert_eq!(Tuning::default().scaled("isolated_pkts", 0, 1).map(|t| t.isolated_pkts), Some(1));
    }
}
