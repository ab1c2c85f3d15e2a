//! A small deterministic generator (SplitMix64), so that one integer is the whole run.

/// Its state is the seed.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// A generator for one purpose of a run. What is drawn for one purpose does not move what is drawn for another, so a run
    /// with a fault less, or a node more, stays as similar as it can.
    #[must_use]
    pub fn stream(seed: u64, purpose: u64) -> Self {
        let mut rng = Self(seed);
        let base = rng.next();
        Self(base ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in `per_mille` of 1000 cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.next() % 1000 < per_mille
    }

    /// True in `ppm` of a million cases.
    pub fn chance_ppm(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.next() % 1_000_000 < ppm
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.between(0, from.len() as u64 - 1) as usize]
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}
