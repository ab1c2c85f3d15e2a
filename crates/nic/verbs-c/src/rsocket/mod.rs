//! rsockets (rsocket(7)): the socket calls. The crate `roxie` implements the sockets; this module has their
//! numbers and options, and the C forms of addresses and messages.

pub(crate) mod epoll;
pub(crate) mod iomap;
pub(crate) mod option;
pub(crate) mod poll;
pub(crate) mod socket;
pub(crate) mod table;
pub(crate) mod transfer;

/// The functions that `symbols/rdmacm.txt` names.
pub(crate) mod exported {
    pub(crate) use super::epoll::{repoll_create, repoll_ctl, repoll_wait};
    pub(crate) use super::iomap::{riomap, riounmap, riowrite};
    pub(crate) use super::option::{rfcntl, rgetsockopt, rsetsockopt};
    pub(crate) use super::poll::{rpoll, rselect};
    pub(crate) use super::socket::{
        raccept, rbind, rclose, rconnect, rgetpeername, rgetsockname, rlisten, rshutdown, rsocket,
    };
    pub(crate) use super::transfer::{
        rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev,
    };
}
