//! libibverbs.so.1 over roxie: the C ABI of rdma-core's libibverbs, and the code behind librdmacm.so.1.
//!
//! This crate is thin: it turns C pointers into handles of the crate `roxie` and back, and errors into errno.
//! `symbols/` lists every exported name, `build.rs` exports them with their versions, [`abi`] holds the C layouts.
//! The functions are sorted as the manual pages are: `ibv`, `rdma` and `rsocket`.

pub mod abi;
mod errno;
mod exit;
mod fork;
mod handle;
mod ibv;
mod object;
mod rdma;
mod refusal;
mod rsocket;
mod signal;

/// The exported names, each a jump to the function of that name.
mod symbols {
    use crate::errno::unsupported;
    use crate::ibv::exported::*;
    use crate::rdma::exported::*;
    use crate::rsocket::exported::*;

    include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
}
