//! What a run measures: completion times and slow-downs by flow size, rates, queues, pauses.

use serde::Serialize;
use transport::QpCounters;

use super::network::{Network, Tally};
use super::work::{Collective, Flow};

/// Bounds of the classes of flow sizes, in bytes.
const CLASSES: [(u64, &str); 6] = [
    (10_000, "up to 10 KB"),
    (100_000, "10 to 100 KB"),
    (1_000_000, "100 KB to 1 MB"),
    (10_000_000, "1 to 10 MB"),
    (u64::MAX, "above 10 MB"),
    (u64::MAX, "all"),
];
/// Rates are kept over time for this many flows: the first ones.
pub(super) const TRACED_FLOWS: usize = 16;
/// Measurements until `duration`.
pub(super) const SAMPLES: u64 = 200;

/// Percentiles of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 95 of 100 are not above.
    pub p95: f64,
    /// 99 of 100 are not above.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Percentiles {
    /// Of these values, in any order.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self { p50: at(0.50), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
}

/// Flows of similar sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeClass {
    /// Its bounds.
    pub name: &'static str,
    /// Complete flows.
    pub flows: u64,
    /// Time from the start of a flow until the receiver has all bytes, in seconds.
    pub seconds: Percentiles,
    /// That time, divided by what the flow takes in an empty network.
    pub slowdown: Percentiles,
    /// Mean of the slow-downs.
    pub slowdown_mean: f64,
}

/// A quantity over time: virtual seconds and value.
pub type Series = Vec<(f64, f64)>;

/// Measurements in the course of a run.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Queues by length: class `n` has lengths below 2^(n/4) - 1 bytes.
    queues: Vec<u64>,
    pub(super) longest: Series,
    pub(super) goodput: Series,
    pub(super) flows: Vec<Series>,
    received: u64,
    flow_received: [u64; TRACED_FLOWS],
}

/// Classes of queue lengths for each doubling.
const PER_DOUBLING: f64 = 4.0;

impl Samples {
    /// Records all queues, what all hosts have received, and what the first flows have.
    pub(super) fn add(&mut self, network: &Network, now: u64, period: u64, received: u64, flows: &[u64]) {
        let mut longest = 0;
        for queue in network.queues() {
            longest = longest.max(queue);
            let class = (((queue + 1) as f64).log2() * PER_DOUBLING).ceil() as usize;
            if self.queues.len() <= class {
                self.queues.resize(class + 1, 0);
            }
            self.queues[class] += 1;
        }
        let (at, per_second) = (now as f64 / 1e12, 8e12 / period as f64);
        self.longest.push((at, longest as f64));
        self.goodput.push((at, received.saturating_sub(self.received) as f64 * per_second));
        self.received = received;
        self.flows.resize(self.flows.len().max(flows.len()), Series::new());
        for ((series, before), now) in self.flows.iter_mut().zip(&mut self.flow_received).zip(flows) {
            series.push((at, now.saturating_sub(*before) as f64 * per_second));
            *before = *now;
        }
    }

    /// Mean until `duration`, if the run lasted so long.
    fn goodput_bps(&self) -> Option<f64> {
        let until = self.goodput.get(..SAMPLES as usize)?;
        Some(until.iter().map(|(_, bps)| bps).sum::<f64>() / SAMPLES as f64)
    }

    fn queue_percentiles(&self, longest: u64) -> Percentiles {
        let all: u64 = self.queues.iter().sum();
        let at = |share: f64| {
            let mut below = 0;
            let class = self.queues.iter().position(|count| {
                below += count;
                below as f64 >= share * all as f64
            });
            let most = class.map_or(0.0, |class| 2f64.powf(class as f64 / PER_DOUBLING).floor() - 1.0);
            most.min(longest as f64)
        };
        Percentiles { p50: at(0.50), p95: at(0.95), p99: at(0.99), max: longest as f64 }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// The seed of the run.
    pub seed: u64,
    /// Hosts and switches.
    pub hosts: usize,
    /// See `hosts`.
    pub switches: usize,
    /// Virtual time at the end, in seconds.
    pub virtual_seconds: f64,
    /// Whether the caller stopped the run.
    pub is_stopped: bool,
    /// Events that were simulated.
    pub events: u64,
    /// Flows that started, that are complete, and that failed with an error.
    pub flows: u64,
    /// See `flows`.
    pub complete: u64,
    /// See `flows`.
    pub failed: u64,
    /// Complete flows by size; the last class has all. Classes without flows are left out.
    pub classes: Vec<SizeClass>,
    /// Collective operations.
    pub collectives: Vec<Collective>,
    /// Payload bytes that receivers have.
    pub received_bytes: u64,
    /// Payload bits per second until `duration`, or until the end if that was earlier.
    pub goodput_bps: f64,
    /// The same at each host that received something: the mean.
    pub goodput_per_receiver_bps: f64,
    /// Jain's index of the rates of flows that started at the same time as the first or that have no end;
    /// `None` if there is only one.
    pub fairness: Option<f64>,
    /// Bytes in the queues of a switch port, over all ports and samples; `max` from all times.
    pub queue_bytes: Percentiles,
    /// The same of the port that has most at the time of the sample.
    pub fullest_queue_bytes: Percentiles,
    /// What happened to frames.
    pub frames: Tally,
    /// Time that ports of hosts, and of switches, were paused, in seconds; sums over ports.
    pub paused_hosts_seconds: f64,
    /// See `paused_hosts_seconds`.
    pub paused_switches_seconds: f64,
    /// Request packets that were retransmitted.
    pub retransmitted: u64,
    /// Request packets that arrived although they had arrived before.
    pub duplicates: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Probes for overdue ACKs.
    pub probes: u64,
    /// CNPs sent, and those that cut a rate.
    pub cnps: u64,
    /// See `cnps`.
    pub cnps_handled: u64,
    /// Frames for connections that had ended.
    pub late_frames: u64,
    /// The longest queue over time, in bytes.
    pub longest_queue: Series,
    /// Bits per second of payload over time.
    pub goodput: Series,
    /// The same of the first flows.
    pub flow_rates: Vec<Series>,
}

/// What a run has at its end.
pub(super) struct Raw<'a> {
    pub(super) seed: u64,
    pub(super) now: u64,
    pub(super) is_stopped: bool,
    pub(super) network: &'a Network,
    pub(super) flows: &'a [Flow],
    pub(super) collectives: &'a [Collective],
    /// Bytes that each flow's receiver has.
    pub(super) received: &'a dyn Fn(&Flow) -> u64,
    pub(super) counters: QpCounters,
    pub(super) received_bytes: u64,
    pub(super) late: u64,
    pub(super) samples: Samples,
}

impl Results {
    pub(super) fn new(raw: Raw<'_>) -> Self {
        let Raw { network, flows, samples, counters, .. } = raw;
        let seconds = (raw.now as f64 / 1e12).max(1e-12);
        let goodput_bps = samples.goodput_bps().unwrap_or(raw.received_bytes as f64 * 8.0 / seconds);
        let mut receivers: Vec<u32> = flows.iter().map(|flow| flow.to).collect();
        receivers.sort_unstable();
        receivers.dedup();
        let [paused_hosts, paused_switches] = network.paused_ps(raw.now);
        let frames = Tally { in_flight: network.frames.len() as u64, ..network.tally };
        Self {
            seed: raw.seed,
            hosts: network.topology.hosts(),
            switches: network.topology.switches(),
            virtual_seconds: seconds,
            is_stopped: raw.is_stopped,
            events: network.events.added(),
            flows: flows.len() as u64,
            complete: flows.iter().filter(|flow| flow.end_ps.is_some()).count() as u64,
            failed: flows.iter().filter(|flow| flow.is_failed).count() as u64,
            classes: classes(flows),
            collectives: raw.collectives.to_vec(),
            received_bytes: raw.received_bytes,
            goodput_bps,
            goodput_per_receiver_bps: goodput_bps / receivers.len().max(1) as f64,
            fairness: fairness(flows, raw.now, raw.received),
            queue_bytes: samples.queue_percentiles(network.longest_queue()),
            fullest_queue_bytes: Percentiles::of(samples.longest.iter().map(|(_, bytes)| *bytes).collect()),
            frames,
            paused_hosts_seconds: paused_hosts as f64 / 1e12,
            paused_switches_seconds: paused_switches as f64 / 1e12,
            retransmitted: counters.retransmitted_pkts,
            duplicates: counters.duplicate_request,
            timeouts: counters.local_ack_timeout_err,
            probes: counters.probes,
            cnps: counters.np_cnp_sent,
            cnps_handled: counters.rp_cnp_handled,
            late_frames: raw.late,
            longest_queue: samples.longest,
            goodput: samples.goodput,
            flow_rates: samples.flows,
        }
    }
}

fn classes(flows: &[Flow]) -> Vec<SizeClass> {
    let complete: Vec<(u64, f64, f64)> = flows
        .iter()
        .filter_map(|flow| {
            let took = (flow.end_ps? - flow.start_ps) as f64;
            Some((flow.bytes, took / 1e12, took / flow.ideal_ps as f64))
        })
        .collect();
    let lower = [0].into_iter().chain(CLASSES.iter().map(|(most, _)| *most));
    let class = |((most, name), above): (&(u64, &'static str), u64)| {
        let above = if *name == "all" { 0 } else { above };
        let within: Vec<_> = complete.iter().filter(|(bytes, ..)| *bytes > above && bytes <= most).collect();
        let slowdowns: Vec<f64> = within.iter().map(|(.., slowdown)| *slowdown).collect();
        SizeClass {
            name,
            flows: within.len() as u64,
            seconds: Percentiles::of(within.iter().map(|(_, seconds, _)| *seconds).collect()),
            slowdown_mean: slowdowns.iter().sum::<f64>() / within.len().max(1) as f64,
            slowdown: Percentiles::of(slowdowns),
        }
    };
    CLASSES.iter().zip(lower).map(class).filter(|class| class.flows > 0).collect()
}

/// Jain's index of the mean rates of the flows without end, or else of all flows that began with the first.
fn fairness(flows: &[Flow], now: u64, received: &dyn Fn(&Flow) -> u64) -> Option<f64> {
    let has_endless = flows.iter().any(Flow::is_endless);
    let first = flows.first().map_or(0, |flow| flow.start_ps);
    let counts = |flow: &&Flow| if has_endless { flow.is_endless() } else { flow.start_ps == first };
    let rate = |flow: &Flow| {
        let took = flow.end_ps.unwrap_or(now).saturating_sub(flow.start_ps).max(1) as f64;
        let bytes = if flow.end_ps.is_some() { flow.bytes } else { received(flow) };
        bytes as f64 / took
    };
    let rates: Vec<f64> = flows.iter().filter(counts).map(rate).collect();
    (rates.len() > 1).then(|| jain(&rates))
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has everything.
fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
    if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let percentiles = Percentiles::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(percentiles, Percentiles { p50: 100.0, p95: 190.0, p99: 198.0, max: 200.0 });
        assert_eq!(Percentiles::of(vec![7.0]).p50, 7.0);
        assert_eq!(Percentiles::of(vec![]), Percentiles::default());
    }

    #[test]
    fn jains_index_is_1_for_equal_rates_and_1_in_n_for_one() {
        assert_eq!(jain(&[5.0; 4]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
    }
}
