//! The options of `roxie demo` and of its processes.

use std::net::IpAddr;

use clap::Args as ClapArgs;

/// Run RDMA operations between two processes, verify every byte, measure throughput and latency
///
/// Starts two processes and connects them through the connection manager (REQ, REP, RTU). One of them does
/// SENDs, WRITEs, READs, compare-and-swaps and fetch-and-adds of 0 bytes to 1 MiB; both compare every byte,
/// including those that must not change. Then it measures bandwidth, message rate and latency for a few
/// seconds, and verifies everything again while 2 % of the client's packets are dropped. Needs no root, no
/// configuration and no other software.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/demo.txt"))]
pub(crate) struct DemoArgs {
    /// Network interface; both processes use its first address [default: lo, 127.0.0.1]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Skip the measurements and the run with loss
    #[arg(long)]
    pub(crate) no_figures: bool,
    /// Print one JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of one process of the demo.
#[derive(Debug, ClapArgs)]
pub(crate) struct DemoRoleArgs {
    /// Address of the passive process.
    #[arg(long)]
    pub(crate) address: IpAddr,
    /// UDP port of the passive process; 0: any free port.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Network interface of the device.
    #[arg(long)]
    pub(crate) netdev: String,
    /// Skip the measurements.
    #[arg(long)]
    pub(crate) no_figures: bool,
}
