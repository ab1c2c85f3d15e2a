//! Receive side scaling: the Toeplitz hash of a frame's addresses and ports selects a work queue.

use transport::{VerbsError, refuse};

use super::key::{DST_IP, DST_PORT, HAS_IPV4, HAS_IPV6, HAS_PORTS, Key, PROTO, SRC_IP, SRC_PORT, TCP, UDP};

/// How an RSS queue pair hashes (`ibv_rx_hash_conf`).
#[derive(Clone, Copy, Debug)]
pub struct RxHash {
    key: [u8; RxHash::KEY_LEN],
    fields: u64,
}

impl RxHash {
    /// Length of the key in bytes, as mlx5 demands it.
    pub const KEY_LEN: usize = 40;
    /// IBV_RX_HASH_FUNC_TOEPLITZ.
    pub const TOEPLITZ: u8 = 1;
    /// Bits of `enum ibv_rx_hash_fields`.
    const SRC_IPV4: u64 = 1;
    const DST_IPV4: u64 = 1 << 1;
    const SRC_IPV6: u64 = 1 << 2;
    const DST_IPV6: u64 = 1 << 3;
    const SRC_TCP: u64 = 1 << 4;
    const DST_TCP: u64 = 1 << 5;
    const SRC_UDP: u64 = 1 << 6;
    const DST_UDP: u64 = 1 << 7;
    /// Every field that it hashes.
    pub const FIELDS: u64 = 0xff;

    /// Checks the parameters of an RSS queue pair.
    ///
    /// # Errors
    /// `EINVAL` for a key of another length; `EOPNOTSUPP` for another function or field, for fields of
    /// both IP versions, and for ports of both TCP and UDP.
    pub fn new(function: u8, key: &[u8], fields: u64) -> Result<Self, VerbsError> {
        let both = |a: u64, b: u64| fields & a != 0 && fields & b != 0;
        let mixes = both(Self::SRC_IPV4 | Self::DST_IPV4, Self::SRC_IPV6 | Self::DST_IPV6)
            || both(Self::SRC_TCP | Self::DST_TCP, Self::SRC_UDP | Self::DST_UDP);
        if function != Self::TOEPLITZ || fields & !Self::FIELDS != 0 || mixes {
            return Err(refuse!(EOPNOTSUPP, "RSS queue pair", "rx_hash_fields_mask"; fields, function;
                "the device has no hash function {function} of the fields {fields:#x}; fields of both IP \
                 versions, or of TCP and UDP, exclude each other"));
        }
        let len = key.len();
        let key = key.try_into().map_err(
            |_| refuse!(EINVAL, "RSS queue pair", "rx_hash_key_len"; len; is "{len}, the key has 40 bytes"),
        )?;
        Ok(Self { key, fields })
    }

    /// Returns the hash of a frame; 0 if it has none of the fields.
    pub(crate) fn hash(&self, key: &Key) -> u32 {
        let mut input = [0; 36];
        let mut len = 0;
        let mut add = |field: u64, from: usize, count: usize| {
            if self.fields & field != 0 {
                input[len..len + count].copy_from_slice(&key.0[from..from + count]);
                len += count;
            }
        };
        if key.has(HAS_IPV4) {
            add(Self::SRC_IPV4, SRC_IP, 4);
            add(Self::DST_IPV4, DST_IP, 4);
        } else if key.has(HAS_IPV6) {
            add(Self::SRC_IPV6, SRC_IP, 16);
            add(Self::DST_IPV6, DST_IP, 16);
        }
        let ports = match key.0[PROTO] {
            TCP => (Self::SRC_TCP, Self::DST_TCP),
            UDP => (Self::SRC_UDP, Self::DST_UDP),
            _ => (0, 0),
        };
        if key.has(HAS_PORTS) {
            add(ports.0, SRC_PORT, 2);
            add(ports.1, DST_PORT, 2);
        }
        toeplitz(&self.key, &input[..len])
    }
}

/// For each bit of the input that is 1, adds (modulo 2) the 32 bits of the key that begin at its position.
fn toeplitz(key: &[u8; RxHash::KEY_LEN], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        let window = [0, 1, 2, 3, 4].map(|k| u64::from(key.get(i + k).copied().unwrap_or(0)));
        let window = window.into_iter().fold(0, |all, byte| all << 8 | byte);
        for bit in 0..8 {
            if byte & 0x80 >> bit != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::frame;
    use super::*;

    /// The key of Microsoft's verification suite for RSS hashes.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn key(src: [u8; 4], dst: [u8; 4], ports: [u16; 2]) -> Key {
        let mut frame = frame(false, TCP, None);
        frame[26..30].copy_from_slice(&src);
        frame[30..34].copy_from_slice(&dst);
        frame[34..36].copy_from_slice(&ports[0].to_be_bytes());
        frame[36..38].copy_from_slice(&ports[1].to_be_bytes());
        Key::of(&frame)
    }

    #[test]
    fn the_hash_is_that_of_the_published_test_vectors() {
        let hash = |fields, key: &Key| RxHash::new(RxHash::TOEPLITZ, &KEY, fields).unwrap().hash(key);
        let first = key([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766]);
        assert_eq!((hash(0x33, &first), hash(0x03, &first)), (0x51cc_c178, 0x323e_8fc2));
        let second = key([199, 92, 111, 2], [65, 69, 140, 83], [14230, 4739]);
        assert_eq!((hash(0x33, &second), hash(0x03, &second)), (0xc626_b0ea, 0xd718_262a));
        assert_eq!(hash(0xc3, &first), hash(0x03, &first), "ports of UDP only");
        assert_eq!(hash(0x0c, &first), 0, "addresses of IPv6 only");
    }

    #[test]
    fn parameters_that_hardware_refuses_are_refused() {
        use transport::Errno;
        let refused = |function, key, fields| RxHash::new(function, key, fields).unwrap_err().kind();
        assert_eq!(refused(2, &KEY, 3), Errno::EOPNOTSUPP);
        assert_eq!(refused(1, &KEY[..39], 3), Errno::EINVAL);
        assert_eq!(refused(1, &KEY, 1 << 8), Errno::EOPNOTSUPP);
        assert_eq!(refused(1, &KEY, 1 << 31), Errno::EOPNOTSUPP);
        assert_eq!(refused(1, &KEY, 0x05), Errno::EOPNOTSUPP);
        assert_eq!(refused(1, &KEY, 0x50), Errno::EOPNOTSUPP);
    }
}
