//! Reproducible pseudo-random numbers for tests (SplitMix64): one seed determines a whole run.

/// A pseudo-random generator; the field is its state.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns the next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the sequence is infinite")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number from 0 to `n - 1`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns true with a probability of 1 / `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the elements.
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next() as u8);
    }

    /// Returns the file with one to eight places overwritten, or cut. The bytes are often at the edge of a
    /// range.
    pub fn overwrite(&mut self, file: &[u8]) -> Vec<u8> {
        let mut out = file.to_vec();
        for _ in 0..1 + self.below(8) {
            let at = self.below(out.len());
            let width = [1, 1, 2, 4, 8][self.below(5)].min(out.len() - at);
            for byte in &mut out[at..at + width] {
                *byte = self.edge();
            }
        }
        if self.one_in(20) {
            out.truncate(self.below(file.len()));
        }
        out
    }

    /// Returns the input with a few bytes changed, removed or repeated.
    pub fn mutate(&mut self, input: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..1 + self.below(6) {
            let at = self.below(out.len() + 1);
            match self.below(4) {
                0 => out.insert(at, self.next() as u8),
                1 if at < out.len() => drop(out.remove(at)),
                2 if at < out.len() => {
                    let again = out[at..(at + 1 + self.below(64)).min(out.len())].to_vec();
                    out.splice(at..at, again);
                }
                _ if at < out.len() => out[at] = self.next() as u8,
                _ => {}
            }
        }
        out
    }

    fn edge(&mut self) -> u8 {
        match self.below(4) {
            0 => 0,
            1 => 0xff,
            2 => 1 << self.below(8),
            _ => self.next() as u8,
        }
    }
}
