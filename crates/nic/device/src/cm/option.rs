//! Options (rdma_set_option(3)).

use std::io;

use super::event::RawEvent;
use super::id::{Id, Phase};
use super::{errno, invalid};

/// Level of options of an identifier (rdma_cma.h RDMA_OPTION_ID).
const LEVEL_ID: i32 = 0;
/// Level of InfiniBand options (rdma_cma.h RDMA_OPTION_IB).
const LEVEL_IB: i32 = 1;
/// Level 0: type of service, u8.
const ID_TOS: i32 = 0;
/// Level 0: share the port until listen, int.
const ID_REUSEADDR: i32 = 1;
/// Level 0: an IPv6 wildcard does not include IPv4, int.
const ID_AFONLY: i32 = 2;
/// Level 0: ACK timeout of the QP, u8.
const ID_ACK_TIMEOUT: i32 = 3;
/// Level 1: path records that replace route resolution.
const IB_PATH: i32 = 1;
/// Size of struct ibv_path_data.
const PATH_DATA_LEN: usize = 72;

impl Id {
    /// Sets an option from the bytes that C programs pass.
    ///
    /// # Errors
    /// `EINVAL` for a wrong length or state; `ENOSYS` for an option that does not exist.
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        match (level, name) {
            (LEVEL_ID, ID_TOS) => state.tos = byte(value)?,
            (LEVEL_ID, ID_REUSEADDR) => {
                let reuse = int(value)? != 0;
                let may = state.phase == Phase::Idle || (reuse && state.phase != Phase::Listen);
                if !may {
                    return Err(invalid());
                }
                state.reuse = reuse;
            }
            (LEVEL_ID, ID_AFONLY) => {
                if !matches!(state.phase, Phase::Idle | Phase::Bound) {
                    return Err(invalid());
                }
                state.af_only = Some(int(value)? != 0);
            }
            (LEVEL_ID, ID_ACK_TIMEOUT) => {
                if self.0.port_space.is_datagram() {
                    return Err(invalid());
                }
                state.ack_timeout = Some(byte(value)? & 31);
            }
            (LEVEL_IB, IB_PATH) => {
                let whole_records = !value.is_empty() && value.len().is_multiple_of(PATH_DATA_LEN);
                if !whole_records || state.phase != Phase::AddrResolved {
                    return Err(invalid());
                }
                state.phase = Phase::RouteResolved;
                drop(state);
                self.0.push(RawEvent::RouteResolved);
            }
            _ => return Err(errno(libc::ENOSYS)),
        }
        Ok(())
    }
}

fn byte(value: &[u8]) -> io::Result<u8> {
    match value {
        [byte] => Ok(*byte),
        _ => Err(invalid()),
    }
}

fn int(value: &[u8]) -> io::Result<i32> {
    value.try_into().map(i32::from_ne_bytes).map_err(|_| invalid())
}
