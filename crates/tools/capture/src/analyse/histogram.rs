//! A histogram of times with a resolution of an eighth, in 2 KiB.

/// Buckets between a power of two and the next.
const STEPS: u32 = 8;
const BUCKETS: usize = (64 * STEPS) as usize;

/// Counts of times.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u32>,
    count: u64,
    max: u64,
    min: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Vec::new(), count: 0, max: 0, min: u64::MAX }
    }
}

impl Histogram {
    /// Adds a time.
    pub fn add(&mut self, ns: u64) {
        if self.counts.is_empty() {
            self.counts.resize(BUCKETS, 0);
        }
        let slot = &mut self.counts[bucket(ns)];
        *slot = slot.saturating_add(1);
        self.count += 1;
        self.max = self.max.max(ns);
        self.min = self.min.min(ns);
    }

    /// Number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest time, or 0.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The time that `percent` of all times do not exceed, with an error of an eighth at most; `None` without
    /// times.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut so_far = 0;
        for (index, count) in self.counts.iter().enumerate() {
            so_far += u64::from(*count);
            if so_far >= wanted {
                return Some(upper(index).clamp(self.min, self.max));
            }
        }
        None
    }
}

fn bucket(ns: u64) -> usize {
    if ns < u64::from(STEPS) {
        return ns as usize;
    }
    let power = ns.ilog2();
    let step = (ns >> (power - STEPS.ilog2())) as usize & (STEPS as usize - 1);
    ((power - 2) * STEPS) as usize + step
}

/// The longest time of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < STEPS as usize {
        return bucket as u64;
    }
    let (power, step) = (bucket as u32 / STEPS + 2, bucket as u64 % u64::from(STEPS));
    let unit = 1u64 << (power - STEPS.ilog2());
    (u64::from(STEPS) + step) * unit + (unit - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_one_bucket_and_buckets_are_contiguous() {
        let mut last = 0;
        for ns in (0..5000).chain([u64::MAX / 3, u64::MAX - 1, u64::MAX]) {
            let at = bucket(ns);
            assert!(at < BUCKETS && ns <= upper(at), "{ns}");
            assert!(at >= last && (at == 0 || ns > upper(at - 1)), "{ns}");
            last = at;
        }
    }

    #[test]
    fn percentiles_have_an_error_of_an_eighth_at_most() {
        let mut times = Histogram::default();
        assert_eq!(times.percentile(50), None);
        for ns in 1..=1000 {
            times.add(ns * 1000);
        }
        assert!((500_000..=562_500).contains(&times.percentile(50).expect("times")));
        assert_eq!(times.percentile(100), Some(1_000_000));
        assert_eq!((times.count(), times.max()), (1000, 1_000_000));
    }
}
