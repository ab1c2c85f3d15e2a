//! SplitMix64: pseudo-random numbers of which one integer is the state, for runs that a seed repeats.

/// Returns the next 64 random bits and advances the state.
///
/// ```
/// let mut state = 7;
/// let first = roxie_transport::split_mix64(&mut state);
/// assert_ne!(roxie_transport::split_mix64(&mut state), first);
/// assert_eq!(roxie_transport::split_mix64(&mut 7), first);
/// ```
#[inline]
pub fn split_mix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
