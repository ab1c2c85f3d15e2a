//! libibverbs.so.1 over roxie: the C ABI of rdma-core's libibverbs, and the code behind librdmacm.so.1.
//!
//! This crate is thin: it converts C pointers to handles of the crate `roxie` and back, and errors to errno.
//! `symbols/` lists every exported name, `build.rs` exports them with their versions, [`abi`] has the C
//! layouts and constants, `handle` turns the arguments of C functions into typed values. The modules follow
//! the manual pages: `ibv`, `rdma` and `rsocket`.

pub mod abi;
mod check;
mod errno;
mod exit;
mod exiting;
mod fork;
mod handle;
mod ibv;
mod nldev;
mod object;
mod observer;
mod rdma;
mod refusal;
mod refused;
mod rsocket;
mod signal;

/// Runs when the library is loaded, before any function that the application calls.
extern "C" fn at_load() {
    roxie_hook::register();
    let process = ibv::device::Process {
        first_device: exit::register,
        devices_looked_at: rdma::device::close_removed,
        device_opened: signal::watch,
    };
    let _is_first = ibv::device::PROCESS.set(process).is_ok();
    fork::register();
    check::start();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// The exported names, each a jump to the function of that name.
mod symbols {
    use crate::errno::unsupported;
    use crate::ibv::exported::*;
    use crate::nldev::{roxie_nl_recvmsg, roxie_nl_sendto, roxie_nl_socket};
    use crate::rdma::exported::*;
    use crate::refused::roxie_last_refusal;
    use crate::rsocket::exported::*;

    include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
}
