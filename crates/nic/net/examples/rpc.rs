//! Remote procedure calls by SEND and RECV, with tokio: one message per request and per reply. Replies may
//! come in another order than the requests; a number in each message tells which belong together.
//!
//! ```text
//! cargo run --release -p roxie-net --example rpc -- server 127.0.0.1:7471 &
//! cargo run --release -p roxie-net --example rpc -- client 127.0.0.1:7471 10000
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use roxie::verbs::{Context, Device, DeviceConfig};
use roxie_net::tokio::{MessageListener, MessageSocket};
use tokio::sync::oneshot;

/// Calls that the client has in flight.
const IN_FLIGHT: u64 = 8;
/// Bytes of the number at the start of each message.
const NUMBER: usize = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let context = Device::open(&DeviceConfig::from_env())?.context()?;
    match words[..] {
        ["server", address] => server(&context, address.parse()?).await,
        ["client", address, calls] => client(&context, address.parse()?, calls.parse()?).await,
        _ => Err("usage: rpc server ADDRESS:PORT | rpc client ADDRESS:PORT CALLS".into()),
    }
}

async fn server(context: &Context, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = MessageListener::bind(context, address)?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let socket = Arc::new(listener.accept().await?);
        tokio::spawn(async move {
            while let Ok(Some(mut request)) = socket.recv().await {
                let socket = Arc::clone(&socket);
                tokio::spawn(async move {
                    // The procedure: reverse the bytes after the number.
                    if let Some(argument) = request.get_mut(NUMBER..) {
                        argument.reverse();
                    }
                    socket.send(&request).await
                });
            }
        });
    }
}

/// A connection to a server; any number of tasks may call at once.
struct Client {
    socket: MessageSocket,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>,
}

impl Client {
    async fn connect(context: &Context, address: SocketAddr) -> io::Result<Arc<Self>> {
        let socket = MessageSocket::connect(context, address).await?;
        let client = Arc::new(Self { socket, next: AtomicU64::new(0), waiting: Mutex::default() });
        let reader = Arc::clone(&client);
        tokio::spawn(async move {
            while let Ok(Some(mut reply)) = reader.socket.recv().await {
                let Some(number) = reply.first_chunk().copied().map(u64::from_be_bytes) else { continue };
                let caller = reader.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                if let Some(caller) = caller {
                    // Fails if the caller does not wait any more.
                    let _cancelled = caller.send(reply.split_off(NUMBER));
                }
            }
            reader.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Ok(client)
    }

    async fn call(&self, argument: &[u8]) -> io::Result<Vec<u8>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (caller, reply) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, caller);
        self.socket.send(&[&number.to_be_bytes(), argument].concat()).await?;
        reply.await.map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}

async fn client(context: &Context, address: SocketAddr, calls: u64) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(context, address).await?;
    println!("reply: {}", String::from_utf8_lossy(&client.call(b"AMDR ,olleh").await?));
    let begun = Instant::now();
    let callers: Vec<_> = (0..IN_FLIGHT)
        .map(|caller| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                for n in (caller..calls).step_by(IN_FLIGHT as usize) {
                    let reply = client.call(&n.to_be_bytes()).await?;
                    if reply != n.to_le_bytes() {
                        return Err(io::Error::other(format!("call {n} has the reply {reply:?}")));
                    }
                }
                Ok(())
            })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{calls} calls, {:.0} per second", calls as f64 / seconds);
    client.socket.close().await?;
    Ok(())
}
