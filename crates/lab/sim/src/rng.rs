//! A small deterministic generator (SplitMix64), so that one integer determines the whole run.

use transport::split_mix64;

/// A pseudo-random generator; the field is its state.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns the generator for one purpose of a run. Numbers drawn for one purpose do not influence others,
    /// so a run with fewer faults or more nodes stays as similar as possible.
    #[must_use]
    pub fn stream(seed: u64, purpose: u64) -> Self {
        let mut rng = Self(seed);
        let base = rng.next();
        Self(base ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// Returns the next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the sequence is infinite")]
    pub fn next(&mut self) -> u64 {
        split_mix64(&mut self.0)
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Returns true with a probability of `per_mille` / 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.next() % 1000 < per_mille
    }

    /// Returns true with a probability of `ppm` / 1,000,000.
    pub fn chance_ppm(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.next() % 1_000_000 < ppm
    }

    /// Returns one of the elements.
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.between(0, from.len() as u64 - 1) as usize]
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}
