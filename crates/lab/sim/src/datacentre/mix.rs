//! Published distributions of flow sizes.

use serde::Deserialize;

use crate::rng::Rng;

/// A distribution of flow sizes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Web search (Alizadeh et al., Data Center TCP, SIGCOMM 2010).
    WebSearch,
    /// Hadoop (Roy et al., Inside the Social Network's Datacenter Network, SIGCOMM 2015).
    Hadoop,
    /// Storage of Alibaba (2019).
    Storage,
    /// The heavy-tailed mix of the IRN paper (Mittal et al., SIGCOMM 2018, section 4.1).
    Irn,
}

/// Bytes and the share of flows, in units of 0.0001, that have at most so many; linear between two points.
/// The values are those of the simulations of the HPCC paper (`traffic_gen/` of its public repository).
type Points = [(u64, u64)];

const WEB_SEARCH: &Points = &[
    (0, 0),
    (10_000, 1500),
    (20_000, 2000),
    (30_000, 3000),
    (50_000, 4000),
    (80_000, 5300),
    (200_000, 6000),
    (1_000_000, 7000),
    (2_000_000, 8000),
    (5_000_000, 9000),
    (10_000_000, 9700),
    (30_000_000, 10_000),
];

const HADOOP: &Points = &[
    (0, 0),
    (100, 100),
    (200, 200),
    (300, 500),
    (350, 1500),
    (400, 2000),
    (500, 3000),
    (600, 4000),
    (700, 5000),
    (1000, 6000),
    (2000, 6700),
    (7000, 7000),
    (30_000, 7200),
    (50_000, 8200),
    (80_000, 8700),
    (120_000, 9000),
    (300_000, 9500),
    (1_000_000, 9750),
    (2_000_000, 9900),
    (10_000_000, 10_000),
];

const STORAGE: &Points = &[
    (0, 0),
    (4_000, 2293),
    (8_000, 6921),
    (16_000, 8061),
    (32_000, 9047),
    (64_000, 9353),
    (128_000, 9677),
    (256_000, 9753),
    (2_000_000, 10_000),
];

/// Half of the flows are single packets (32 B to 1 KB), 15 % have 200 KB to 3 MB, the others are between.
const IRN: &Points = &[(31, 0), (1000, 5000), (200_000, 8500), (3_000_000, 10_000)];

impl Mix {
    fn points(self) -> &'static Points {
        match self {
            Self::WebSearch => WEB_SEARCH,
            Self::Hadoop => HADOOP,
            Self::Storage => STORAGE,
            Self::Irn => IRN,
        }
    }

    /// Mean number of bytes of a flow.
    pub(crate) fn mean(self) -> f64 {
        let part = |pair: &[(u64, u64)]| {
            let [(from, below), (to, until)] = pair else { return 0.0 };
            (from + to) as f64 / 2.0 * (until - below) as f64 / 10_000.0
        };
        self.points().windows(2).map(part).sum()
    }

    /// Draws the bytes of a flow, at least 1.
    pub(crate) fn draw(self, rng: &mut Rng) -> u64 {
        let at = unit(rng) * 10_000.0;
        let points = self.points();
        let upper = points.iter().position(|(_, share)| *share as f64 > at).unwrap_or(points.len() - 1);
        let ((from, below), (to, until)) = (points[upper - 1], points[upper]);
        let share = (at - below as f64) / (until - below) as f64;
        (from + ((to - from) as f64 * share) as u64).max(1)
    }
}

/// A number in 0..1.
pub(crate) fn unit(rng: &mut Rng) -> f64 {
    (rng.next() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_sizes_have_the_mean_and_the_quantiles_of_their_mix() {
        for (mix, median) in [(Mix::WebSearch, 73_000), (Mix::Hadoop, 700), (Mix::Storage, 6340)] {
            let mut rng = Rng::stream(7, 1);
            let mut drawn: Vec<u64> = (0..200_000).map(|_| mix.draw(&mut rng)).collect();
            drawn.sort_unstable();
            let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
            assert!((mean / mix.mean() - 1.0).abs() < 0.03, "{mix:?}: {mean} is not {}", mix.mean());
            assert!(drawn[100_000].abs_diff(median) < median / 20, "{mix:?}: median {}", drawn[100_000]);
        }
        assert!((Mix::WebSearch.mean() - 1_700_000.0).abs() < 100_000.0, "{}", Mix::WebSearch.mean());
    }
}
