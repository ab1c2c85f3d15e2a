//! Byte patterns that differ at every offset, so that a misplaced byte is detected.

/// The fill byte of memory that no operation may write.
pub(super) const UNTOUCHED: u8 = 0xa5;

/// Fills `bytes` with the pattern of `seed`.
pub(super) fn fill(bytes: &mut [u8], seed: u64) {
    for (n, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, n as u64).to_le_bytes()[..chunk.len()]);
    }
}

/// Offset of the first byte that is not the pattern of `seed`.
pub(super) fn difference(bytes: &[u8], seed: u64) -> Option<usize> {
    bytes.chunks(8).enumerate().find_map(|(n, chunk)| {
        let wanted = word(seed, n as u64).to_le_bytes();
        let at = chunk.iter().zip(&wanted).position(|(got, want)| got != want)?;
        Some(n * 8 + at)
    })
}

/// Offset of the first byte that is not the fill byte.
pub(super) fn touched(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte != UNTOUCHED)
}

/// splitmix64 as a function of the index: any word can be computed without the ones before it.
fn word(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found() {
        for len in [0, 1, 7, 8, 9, 100] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 42);
            assert_eq!(difference(&bytes, 42), None);
            for at in 0..len {
                bytes[at] ^= 1;
                assert_eq!(difference(&bytes, 42), Some(at));
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn patterns_of_two_seeds_differ_at_once() {
        let mut bytes = [0; 64];
        fill(&mut bytes, 1);
        assert!(difference(&bytes, 2).is_some_and(|at| at < 2));
    }

    #[test]
    fn a_touched_byte_is_found() {
        let mut bytes = [UNTOUCHED; 16];
        assert_eq!(touched(&bytes), None);
        bytes[9] = 0;
        assert_eq!(touched(&bytes), Some(9));
    }
}
