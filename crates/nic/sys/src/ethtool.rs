//! The counters of a driver, by the names the driver gives them (linux/ethtool.h).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::{check, udp_socket};

/// linux/ethtool.h
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
/// Bytes of a name.
const ETH_GSTRING_LEN: usize = 32;
/// Upper bound: drivers with a counter for everything on every queue have some thousands.
const COUNTERS_MAX: u32 = 1 << 16;

/// `struct ethtool_sset_info` for one set, in words: command, reserved, mask (64 bits), size.
type SetInfo = [u32; 5];

/// Returns the counters of the driver of interface `name`, as `ethtool -S` shows them:
/// `rx_queue_0_xdp_drops` and the like.
///
/// # Errors
/// `EOPNOTSUPP` if the driver has no such counters; `ENODEV`.
pub fn driver_counters(name: &str) -> io::Result<Vec<(String, u64)>> {
    let socket = udp_socket(false)?;
    let mut set: SetInfo = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0, 0];
    ask(&socket, name, &mut set)?;
    let count = if set[2] == 0 { 0 } else { set[4].min(COUNTERS_MAX) };
    // Both requests begin with the command and, after the set for names, the number of entries.
    let mut names = vec![0u32; 3 + count as usize * ETH_GSTRING_LEN / 4];
    names[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS, count]);
    let mut values = vec![0u32; 2 + count as usize * 2];
    values[..2].copy_from_slice(&[ETHTOOL_GSTATS, count]);
    if count > 0 {
        ask(&socket, name, &mut names)?;
        ask(&socket, name, &mut values)?;
    }
    let names = names[3..].chunks_exact(ETH_GSTRING_LEN / 4).map(|words| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(ETH_GSTRING_LEN);
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    });
    let values = values[2..].chunks_exact(2).map(|half| {
        let [a, b, c, d] = half[0].to_ne_bytes();
        let [e, f, g, h] = half[1].to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    });
    Ok(names.zip(values).collect())
}

/// Whether interface `name` computes checksums of sent packets, so that sockets leave them to it (`ethtool
/// -k`, tx-checksumming).
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not say; `ENODEV`.
pub fn transmit_checksums(name: &str) -> io::Result<bool> {
    let mut value = [ETHTOOL_GTXCSUM, 0];
    ask(&udp_socket(false)?, name, &mut value)?;
    Ok(value[1] != 0)
}

/// Issues one request; `words` begins with the command and has space for the answer, of the length that
/// the kernel was told.
fn ask(socket: &OwnedFd, name: &str, words: &mut [u32]) -> io::Result<()> {
    // SAFETY: plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: `request` is valid, and `words` has room for as many entries as its header says.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) }).map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::{enter_new_netns, ip};

    #[test]
    fn veth_counts_by_queue_and_loopback_counts_nothing() {
        if !enter_new_netns() {
            return;
        }
        ip("link add veth0 numrxqueues 2 numtxqueues 2 type veth peer name veth1");
        let counters = driver_counters("veth0").unwrap();
        for name in ["peer_ifindex", "rx_queue_0_xdp_drops", "rx_queue_1_xdp_tx_errors"] {
            assert!(counters.iter().any(|(known, _)| known == name), "{name} in {counters:?}");
        }
        let peer = counters.iter().find(|(name, _)| name == "peer_ifindex").unwrap().1;
        assert!(peer > 1 && peer < 1000, "{peer}");
        assert!(transmit_checksums("veth0").unwrap(), "sockets leave checksums to a veth");
        assert_eq!(transmit_checksums("nonesuch").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(driver_counters("lo").unwrap(), []);
        for name in ["nonesuch", "much-too-long-for-a-name"] {
            assert_eq!(driver_counters(name).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
    }
}
