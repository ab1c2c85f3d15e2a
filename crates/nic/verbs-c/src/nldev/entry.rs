//! The attributes of one object in a table of rdma(8): a queue pair, protection domain, completion queue,
//! memory region, context, shared receive queue or identifier of a connection.

use std::net::SocketAddr;

use roxie::registry::is_root;
use roxie::status::{ObjectStatus, QpStatus};

use super::attribute::*;
use super::message::Message;
use crate::ibv::query::PORT;

/// `IB_QPT_RC` and `IB_QPT_UD`.
const RC: u8 = 2;
const UD: u8 = 4;
/// `RDMA_PS_UDP`.
const PORT_SPACE_UDP: u16 = 0x0111;
/// Bytes of `sockaddr_storage`.
const ADDRESS_LEN: usize = 128;

pub(super) fn queue_pair(message: &mut Message, pid: u32, qp: &QpStatus) {
    const MIGRATED: u8 = 0;
    if qp.state != "RESET" {
        message.u32(PORT_INDEX, u32::from(PORT));
    }
    message.u32(RES_LQPN, qp.qpn.value());
    if let Some(peer) = qp.dest_qpn {
        message.u32(RES_RQPN, peer.value());
        message.u32(RES_RQ_PSN, qp.rq_psn.value());
    }
    message.u32(RES_SQ_PSN, qp.sq_psn.value());
    if !matches!(&*qp.service, "UD" | "GSI") {
        message.u8(RES_PATH_MIG_STATE, MIGRATED);
    }
    message.u8(RES_TYPE, service(qp));
    message.u8(RES_STATE, state(&qp.state));
    message.u32(RES_PID, pid);
}

/// Numbers as `rdma` knows them are those of the process; with several processes a number is not unique.
pub(super) fn object(message: &mut Message, pid: u32, object: &ObjectStatus) {
    match *object {
        ObjectStatus::Pd { id, ctx, users } => {
            message.u64(RES_USECNT, users);
            message.u32(RES_PDN, id);
            message.u32(RES_CTXN, ctx);
        }
        ObjectStatus::Cq { id, ctx, entries, users } => {
            message.u32(RES_CQE, entries);
            message.u64(RES_USECNT, users);
            message.u32(RES_CQN, id);
            message.u32(RES_CTXN, ctx);
        }
        ObjectStatus::Mr { id, key, len, pd } => {
            // The kernel shows keys to CAP_NET_ADMIN only.
            if is_root() {
                message.u32(RES_RKEY, key);
                message.u32(RES_LKEY, key);
            }
            message.u64(RES_MRLEN, len);
            message.u32(RES_MRN, id);
            message.u32(RES_PDN, pd);
        }
        ObjectStatus::CmId { id, state, port_space, qpn, local, remote } => {
            message.u32(PORT_INDEX, u32::from(PORT));
            if let Some(qpn) = qpn {
                message.u32(RES_LQPN, qpn.value());
                message.u8(RES_TYPE, if port_space == PORT_SPACE_UDP { UD } else { RC });
            }
            message.u32(RES_PS, port_space.into());
            message.u8(RES_STATE, state);
            for (attribute, address) in [(RES_SRC_ADDR, local), (RES_DST_ADDR, remote)] {
                if let Some(address) = address {
                    message.put(attribute, &sockaddr(address));
                }
            }
            message.u32(RES_CM_IDN, id);
        }
        ObjectStatus::Ctx { id } => message.u32(RES_CTXN, id),
        ObjectStatus::Srq { id, pd, cq, ref qps } => {
            message.u32(RES_SRQN, id);
            message.u8(RES_TYPE, u8::from(cq.is_some()));
            message.u32(RES_PDN, pd);
            if let Some(cq) = cq {
                message.u32(RES_CQN, cq);
            }
            // The kernel joins successive numbers; those of roxie are random.
            message.nest(RES_QP, |message| {
                for qpn in qps {
                    message.nest(RES_QP_ENTRY, |message| message.u32(RES_LQPN, qpn.value()));
                }
            });
        }
    }
    message.u32(RES_PID, pid);
}

/// `sockaddr_in` or `sockaddr_in6`, as long as `sockaddr_storage`.
fn sockaddr(address: SocketAddr) -> [u8; ADDRESS_LEN] {
    let mut bytes = [0; ADDRESS_LEN];
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => bytes[4..8].copy_from_slice(&address.ip().octets()),
        SocketAddr::V6(address) => {
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// `enum ib_qp_type` of the kernel.
fn service(qp: &QpStatus) -> u8 {
    const UNKNOWN: u8 = 7;
    match &*qp.service {
        "GSI" => 1,
        "RC" => RC,
        "UC" => 3,
        "UD" => UD,
        // A target has no send queue.
        "XRC" if qp.max_send_wr > 0 => 9,
        "XRC" => 10,
        _ => UNKNOWN,
    }
}

/// `enum ib_qp_state` of the kernel.
fn state(state: &str) -> u8 {
    const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    const UNKNOWN: u8 = 7;
    STATES.iter().position(|known| *known == state).map_or(UNKNOWN, |at| at as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_layout_of_the_c_structures() {
        let v4 = sockaddr("10.0.0.2:7174".parse().unwrap());
        assert_eq!(v4[2..9], [0x1c, 0x06, 10, 0, 0, 2, 0]);
        let v6 = sockaddr("[fd00::2]:1".parse().unwrap());
        assert_eq!((v6[8], v6[23], v6[3]), (0xfd, 2, 1));
    }

    #[test]
    fn queue_pairs_have_the_numbers_of_the_kernel() {
        let qp = |service: &str, max_send_wr| QpStatus {
            service: service.to_owned(),
            max_send_wr,
            ..QpStatus::default()
        };
        let types = [qp("RC", 1), qp("UD", 1), qp("XRC", 1), qp("XRC", 0), qp("", 0)];
        assert_eq!(types.map(|qp| service(&qp)), [2, 4, 9, 10, 7]);
        assert_eq!(["RESET", "RTS", "ERR", "?"].map(state), [0, 3, 6, 7]);
    }
}
