//! Options (rdma_set_option(3)).

use super::event::RawEvent;
use super::id::Id;
use super::out_of_phase;
use super::state::Phase;
use transport::{VerbsError, refuse};

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
    /// `EINVAL` for a wrong length or state; `ENOSYS` for an option that does not exist; `EADDRNOTAVAIL` if
    /// another process has the IPv4 addresses that a bound identifier would get by RDMA_OPTION_ID_AFONLY.
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<(), VerbsError> {
        let mut state = self.0.lock();
        match (level, name) {
            (LEVEL_ID, ID_TOS) => state.tos = byte(value)?,
            (LEVEL_ID, ID_REUSEADDR) => {
                let reuse = int(value)? != 0;
                let may = state.phase == Phase::Idle || (reuse && state.phase != Phase::Listen);
                if !may {
                    return Err(out_of_phase!(
                        state.phase,
                        "RDMA_OPTION_ID_REUSEADDR is set before the identifier has an address"
                    ));
                }
                state.reuse = reuse;
                if let Some(bound) = &mut state.bound {
                    bound.update(|binding| binding.reuse = reuse)?;
                }
            }
            (LEVEL_ID, ID_AFONLY) => {
                if !matches!(state.phase, Phase::Idle | Phase::Bound) {
                    return Err(out_of_phase!(
                        state.phase,
                        "RDMA_OPTION_ID_AFONLY is set before the identifier listens or connects"
                    ));
                }
                let af_only = int(value)? != 0;
                if let Some(bound) = &mut state.bound {
                    bound.update(|binding| binding.af_only = af_only)?;
                }
                state.af_only = Some(af_only);
            }
            (LEVEL_ID, ID_ACK_TIMEOUT) => {
                if self.0.port_space.is_datagram() {
                    return Err(refuse!(EINVAL, "identifier", "optname"; name;
                        "RDMA_OPTION_ID_ACK_TIMEOUT ({name}) is for connections, not for datagrams"));
                }
                state.ack_timeout = Some(byte(value)? & 31);
            }
            (LEVEL_IB, IB_PATH) => {
                let len = value.len();
                if len == 0 || !len.is_multiple_of(PATH_DATA_LEN) {
                    return Err(wrong_length(len, PATH_DATA_LEN));
                }
                if state.phase != Phase::AddrResolved {
                    return Err(out_of_phase!(
                        state.phase,
                        "RDMA_OPTION_IB_PATH comes after RDMA_CM_EVENT_ADDR_RESOLVED"
                    ));
                }
                state.phase = Phase::RouteResolved;
                // Under the lock: no event follows that of a removed device.
                self.0.push(RawEvent::RouteResolved);
            }
            _ => {
                return Err(refuse!(ENOSYS, "identifier", "optname"; name, level as i32;
                    "there is no option {name} of level {level}"));
            }
        }
        Ok(())
    }
}

fn byte(value: &[u8]) -> Result<u8, VerbsError> {
    match value {
        [byte] => Ok(*byte),
        _ => Err(wrong_length(value.len(), 1)),
    }
}

fn int(value: &[u8]) -> Result<i32, VerbsError> {
    value.try_into().map(i32::from_ne_bytes).map_err(|_| wrong_length(value.len(), 4))
}

#[cold]
fn wrong_length(len: usize, wanted: usize) -> VerbsError {
    refuse!(EINVAL, "identifier", "optlen"; len, wanted; is "{len}, the option has {wanted} bytes")
}
