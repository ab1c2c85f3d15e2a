//! Random numbers from the kernel (getrandom(2)).

use super::call;

/// Returns 64 random bits.
///
/// # Panics
/// Never on a kernel since 3.17, which has getrandom.
#[must_use]
pub fn random_u64() -> u64 {
    let mut value = 0u64;
    loop {
        // SAFETY: the buffer is 8 bytes long.
        let ret = unsafe { call::getrandom((&raw mut value).cast(), 8) };
        // Requests of up to 256 bytes are never cut short; only a signal before the pool is initialized
        // interrupts one.
        if ret == 8 {
            return value;
        }
        assert_eq!(
            std::io::Error::last_os_error().kind(),
            std::io::ErrorKind::Interrupted,
            "getrandom does not work"
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_numbers_differ() {
        assert_ne!(super::random_u64(), super::random_u64());
    }
}
