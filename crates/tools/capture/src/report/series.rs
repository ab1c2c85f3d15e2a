//! Values over time in bounded memory. The resolution depends on the length of the capture.

/// Buckets of a series; their width doubles as needed.
const BUCKETS_MAX: usize = 512;
/// Most points kept; at this number every second one is removed.
const POINTS_MAX: usize = 4096;
/// Initial width of a bucket in nanoseconds.
const WIDTH_MIN: u64 = 1000;

/// Sums over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    start: Option<u64>,
    width: u64,
    sums: Vec<u64>,
}

impl Series {
    pub(super) fn add(&mut self, ns: u64, value: u64) {
        let start = *self.start.get_or_insert(ns);
        self.width = self.width.max(WIDTH_MIN);
        // A time before the start counts as the start.
        let after = ns.saturating_sub(start);
        while after / self.width >= BUCKETS_MAX as u64 {
            self.sums = self.sums.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.width *= 2;
        }
        let at = (after / self.width) as usize;
        if self.sums.len() <= at {
            self.sums.resize(at + 1, 0);
        }
        self.sums[at] += value;
    }

    /// The middle of each bucket in nanoseconds, and its sum per second.
    pub(super) fn rates(&self) -> Vec<(u64, f64)> {
        let start = self.start.unwrap_or(0);
        let rate = |sum: u64| sum as f64 * 1e9 / self.width.max(1) as f64;
        (0..)
            .zip(&self.sums)
            .map(|(at, sum)| ((start + at * self.width).saturating_add(self.width / 2), rate(*sum)))
            .collect()
    }
}

/// Single values over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Points {
    list: Vec<(u64, f64)>,
    seen: u64,
    /// One of 2^thinned points is kept.
    thinned: u32,
}

impl Points {
    pub(super) fn add(&mut self, ns: u64, value: f64) {
        if self.seen.is_multiple_of(1 << self.thinned) {
            self.list.push((ns, value));
        }
        self.seen += 1;
        if self.list.len() >= POINTS_MAX {
            let mut at = 0;
            self.list.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.thinned += 1;
        }
    }

    pub(super) fn list(&self) -> &[(u64, f64)] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_keeps_its_sum_when_buckets_are_merged() {
        let mut series = Series::default();
        for ns in 0..100_000 {
            series.add(ns * 1000, 3);
        }
        assert!(series.sums.len() <= BUCKETS_MAX);
        assert_eq!(series.sums.iter().sum::<u64>(), 300_000);
        let rates = series.rates();
        // 3 in each microsecond.
        assert!(rates[..rates.len() - 1].iter().all(|(_, rate)| (*rate - 3e6).abs() < 1.0), "{rates:?}");
    }

    #[test]
    fn a_series_may_end_at_the_last_nanosecond() {
        let mut series = Series::default();
        series.add(1, 3);
        series.add(u64::MAX, 5);
        assert_eq!(series.rates().last().map(|(ns, _)| *ns), Some(u64::MAX));
    }

    #[test]
    fn points_are_thinned_evenly() {
        let mut points = Points::default();
        for n in 0..20_000 {
            points.add(n, n as f64);
        }
        let list = points.list();
        assert!(list.len() < POINTS_MAX && list.len() > POINTS_MAX / 4);
        assert!(list.windows(2).all(|pair| pair[1].0 - pair[0].0 == 8), "{:?}", &list[..4]);
    }
}
