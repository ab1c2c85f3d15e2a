//! The asynchronous interfaces, on tokio and on smol.

mod completions;
mod messages;
mod streams;

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use roxie::registry::DomainConfig;
use roxie::verbs::{Context, Device, DeviceConfig};

/// Time limit of a whole test.
const LIMIT: Duration = Duration::from_secs(60);
/// A free port of the loopback address.
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Opens a device on `lo` in a domain of its own.
fn device() -> Context {
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a UDP socket");
    let port = probe.local_addr().expect("it is bound").port();
    drop(probe);
    let domain = DomainConfig::parse(&format!("net-{port}:{port}"));
    let config = DeviceConfig { netdev: Some("lo".to_owned()), domain, ..DeviceConfig::default() };
    Device::open(&config).and_then(|device| device.context()).expect("lo exists")
}

/// Runs a test on tokio, with its tasks on several threads.
fn on_tokio<T: Send + 'static>(test: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let outcome = runtime.block_on(async { tokio::time::timeout(LIMIT, tokio::spawn(test)).await });
    outcome.expect("the test ends in time").expect("the test does not panic")
}

/// Runs a test on smol.
fn on_smol<T>(test: impl Future<Output = T>) -> T {
    smol::block_on(smol::future::or(test, async {
        smol::Timer::after(LIMIT).await;
        panic!("the test takes too long");
    }))
}

/// Bytes that differ by position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}
