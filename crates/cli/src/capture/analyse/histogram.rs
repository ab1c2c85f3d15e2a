//! Times in buckets an eighth apart: any number of them in a kilobyte or two.

/// Buckets of a doubling.
const STEPS: u32 = 8;
const BUCKETS: usize = (64 * STEPS) as usize;

/// How often each time was seen.
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

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The time that `percent` of all do not exceed, to an eighth; `None` if there are none.
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
    fn every_time_lies_in_its_bucket_and_buckets_follow_each_other() {
        let mut last = 0;
        for ns in (0..5000).chain([u64::MAX / 3, u64::MAX - 1, u64::MAX]) {
            let at = bucket(ns);
            assert!(at < BUCKETS && ns <= upper(at), "{ns}");
            assert!(at >= last && (at == 0 || ns > upper(at - 1)), "{ns}");
            last = at;
        }
    }

    #[test]
    fn percentiles_are_right_to_an_eighth() {
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
