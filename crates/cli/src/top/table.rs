//! Queue pairs with their rates, computed from the counters of two updates.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::item::{Item, Key, Metric, Rates};
use super::process::Engine;
use super::source::{Look, Source};
use super::{SORTS, Sort};
use crate::failure::Outcome;

/// A queue pair over several updates.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) item: Item,
    pub(super) rates: Rates,
    /// Bytes per second of the last updates, the latest last.
    pub(super) tx_history: VecDeque<u64>,
    pub(super) rx_history: VecDeque<u64>,
}

/// Updates in the history: one for each column of a wide terminal.
pub(super) const HISTORY: usize = 240;

impl Row {
    pub(super) fn rate(&self, metric: Metric) -> f64 {
        self.rates[metric as usize]
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match self.item.key {
            Key::Process { pid, .. } => Some(pid),
            Key::Wire { .. } => None,
        }
    }

    /// Address of the peer, with its queue pair if `with_qp`; `-` if not connected.
    pub(super) fn peer(&self, with_qp: bool) -> String {
        match (self.item.status.remote, self.item.status.dest_qpn) {
            (Some(remote), Some(qpn)) if with_qp => format!("{remote} {:#x}", qpn.value()),
            (Some(remote), _) => remote.to_string(),
            _ => "-".to_owned(),
        }
    }

    /// Process, device and number. Names are compared by length first: roxie2 comes before roxie10.
    fn place(&self) -> (Option<u32>, usize, &str, u32) {
        let device = self.item.device.as_str();
        (self.pid(), device.len(), device, self.item.status.qpn.value())
    }

    fn has(&self, text: &str) -> bool {
        let status = &self.item.status;
        let words = [
            self.pid().map(|pid| pid.to_string()).unwrap_or_default(),
            self.item.command.to_lowercase(),
            self.item.device.to_lowercase(),
            self.item.netdev.to_lowercase(),
            format!("{:#08x}", status.qpn.value()),
            status.service.to_lowercase(),
            status.state.to_lowercase(),
            status.local.map(|address| address.to_string()).unwrap_or_default(),
            self.peer(true),
        ];
        words.iter().any(|word| word.contains(text))
    }
}

/// All queue pairs.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Row>,
    at: Option<Instant>,
    /// Bytes per second of all queue pairs, the latest last.
    pub(super) tx_history: VecDeque<u64>,
    pub(super) rx_history: VecDeque<u64>,
    /// Description of the source.
    pub(super) summary: String,
    /// Processes of other users that are not shown.
    pub(super) hidden: usize,
    /// Ids of the processes that did not answer.
    pub(super) unresponsive: Vec<u32>,
    /// The devices of the processes.
    pub(super) devices: Vec<Engine>,
}

impl Table {
    /// Reads the source again.
    pub(super) fn update(&mut self, source: &mut Source) -> Outcome {
        let Look { items, summary, hidden, unresponsive, devices } = source.look()?;
        (self.summary, self.devices) = (summary, devices);
        (self.hidden, self.unresponsive) = (hidden, unresponsive);
        self.take(items, Instant::now());
        Ok(())
    }

    /// Replaces the queue pairs, and computes rates since the last call.
    pub(super) fn take(&mut self, items: Vec<Item>, now: Instant) {
        let seconds = self.at.map(|at| now.duration_since(at).as_secs_f64()).filter(|seconds| *seconds > 0.0);
        self.at = Some(now);
        let mut before: HashMap<Key, Row> =
            self.rows.drain(..).map(|row| (row.item.key.clone(), row)).collect();
        for item in items {
            let known = before.remove(&item.key);
            let old = known.as_ref().map_or([0; _], |row| row.item.totals);
            // A queue pair that is new since the last update had no traffic before.
            let rates = std::array::from_fn(|metric| {
                let grown = item.totals[metric].saturating_sub(old[metric]);
                seconds.map_or(0.0, |seconds| grown as f64 / seconds)
            });
            let (tx_history, rx_history) =
                known.map(|row| (row.tx_history, row.rx_history)).unwrap_or_default();
            let mut row = Row { item, rates, tx_history, rx_history };
            if seconds.is_some() {
                remember(&mut row.tx_history, row.rates[Metric::TxBytes as usize]);
                remember(&mut row.rx_history, row.rates[Metric::RxBytes as usize]);
            }
            self.rows.push(row);
        }
        if seconds.is_some() {
            let (tx, rx) = (self.total(Metric::TxBytes), self.total(Metric::RxBytes));
            remember(&mut self.tx_history, tx);
            remember(&mut self.rx_history, rx);
        }
    }

    /// The sum of a rate over all queue pairs.
    pub(super) fn total(&self, metric: Metric) -> f64 {
        self.rows.iter().map(|row| row.rate(metric)).sum()
    }

    /// Number of queue pairs.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The queue pair with this key.
    pub(super) fn find(&self, key: &Key) -> Option<&Row> {
        self.rows.iter().find(|row| row.item.key == *key)
    }

    /// The queue pairs with `filter` in their text, sorted; equal ones by process, device and number.
    pub(super) fn chosen(&self, sort: Sort, filter: &str) -> Vec<&Row> {
        let filter = filter.to_lowercase();
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.has(&filter)).collect();
        let weight = |row: &Row| {
            let sum = |metrics: &[Metric]| metrics.iter().map(|metric| row.rate(*metric)).sum::<f64>();
            match sort {
                Sort::RoundTrip => row.item.status.round_trip_ns.unwrap_or(0) as f64,
                _ => sum(SORTS[sort as usize].3),
            }
        };
        rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then_with(|| a.place().cmp(&b.place())));
        rows
    }
}

fn remember(history: &mut VecDeque<u64>, rate: f64) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(rate as u64);
}
