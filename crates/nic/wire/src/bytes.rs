//! Access to fixed-size fields in headers of fixed size. The offsets are constants in the header's file and
//! never depend on received data. A wrong offset panics in the first test that uses it.

/// Returns the `N` bytes at offset `at`.
#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Stores `value` at offset `at`.
#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Returns a big-endian number of 24 bits, the width of QPNs, PSNs and MSNs.
#[inline]
pub(crate) fn u24_at(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = array(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

/// Stores the low 24 bits of `value`.
#[inline]
pub(crate) fn put_u24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(bytes, at, [a, b, c]);
}

/// Checks the rule that every header follows: a bit is either a field, which survives parse and emit, or
/// reserved, which parse ignores and emit clears. `reserved` has a one for every reserved bit.
#[cfg(test)]
pub(crate) fn check_every_bit<const N: usize>(reserved: [u8; N], round_trip: impl Fn(&[u8; N]) -> [u8; N]) {
    for fill in [0x00, 0xff, 0xa5, 0x3c] {
        for bit in 0..N * 8 {
            let mut bytes = [fill; N];
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            let mut want = bytes;
            for (byte, mask) in want.iter_mut().zip(reserved) {
                *byte &= !mask;
            }
            assert_eq!(round_trip(&bytes), want, "bit {bit} of {bytes:02x?}");
        }
    }
}
