//! A key-value store with tokio. A GET takes no CPU time of the server's program.
//!
//! The server exposes a table of buckets. A client sends a PUT as a message. It GETs with an RDMA READ of the
//! bucket. A READ may overlap with a PUT that changes the bucket; the checksum shows that, and the client
//! reads again.
//!
//! ```text
//! cargo run --release -p roxie-net --example kv -- server 127.0.0.1:7471 &
//! cargo run --release -p roxie-net --example kv -- put 127.0.0.1:7471 colour green
//! cargo run --release -p roxie-net --example kv -- get 127.0.0.1:7471 colour
//! ```

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use roxie::transport::Access;
use roxie::verbs::{Buffer, Context, Device, DeviceConfig};
use roxie_net::RemoteMemory;
use roxie_net::tokio::{MessageListener, MessageSocket};

/// Number of buckets; a key has one place only, so a later key may replace another.
const BUCKETS: u32 = 1024;
/// A bucket: checksum (8), length of the key (1), length of the value (1), key, value.
const BUCKET: u32 = 256;
const HEADER: usize = 10;
/// Readings of a bucket that changes all the time.
const ATTEMPTS: u32 = 100;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let context = Device::open(&DeviceConfig::from_env())?.context()?;
    match words[..] {
        ["server", address] => server(&context, address.parse()?).await,
        ["put", address, key, value] => {
            let mut store = Store::connect(&context, address.parse()?).await?;
            store.put(key, value).await?;
            println!("{key} = {value}");
            Ok(())
        }
        ["get", address, key] => {
            let store = Store::connect(&context, address.parse()?).await?;
            let value = store.get(key).await?.ok_or_else(|| format!("no such key: {key}"))?;
            println!("{key} = {value}");
            Ok(())
        }
        _ => {
            Err("usage: kv server ADDRESS:PORT | kv put ADDRESS:PORT KEY VALUE | kv get ADDRESS:PORT KEY"
                .into())
        }
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    // This hasher has the same result in every process.
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn offset(key: &[u8]) -> u32 {
    (checksum(key) % u64::from(BUCKETS)) as u32 * BUCKET
}

/// Returns the bytes of a bucket; `None` if key and value are too long.
fn bucket(key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let lengths = [u8::try_from(key.len()).ok()?, u8::try_from(value.len()).ok()?];
    let content = [&lengths, key, value].concat();
    let bucket = [&checksum(&content).to_be_bytes(), &content[..]].concat();
    (bucket.len() <= BUCKET as usize).then_some(bucket)
}

async fn server(context: &Context, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = MessageListener::bind(context, address)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let table = Arc::new(listener.expose((BUCKETS * BUCKET) as usize, access)?);
    println!("listening on {}", listener.local_addr()?);
    loop {
        let socket = listener.accept().await?;
        let table = Arc::clone(&table);
        tokio::spawn(async move {
            socket.send(&RemoteMemory::of(&table).to_bytes()).await?;
            while let Some(request) = socket.recv().await? {
                let stored = store(&table, &request);
                socket.send(&[u8::from(stored)]).await?;
            }
            std::io::Result::Ok(())
        });
    }
}

/// Executes a PUT: the request is the bucket.
fn store(table: &Buffer, request: &[u8]) -> bool {
    let key = match request.get(HEADER - 2..HEADER) {
        Some(&[key, value]) if request.len() == HEADER + usize::from(key) + usize::from(value) => {
            &request[HEADER..HEADER + usize::from(key)]
        }
        _ => return false,
    };
    if request.len() > BUCKET as usize {
        return false;
    }
    table.write(offset(key) as usize, request);
    true
}

/// A client.
struct Store {
    socket: MessageSocket,
    table: RemoteMemory,
}

impl Store {
    async fn connect(context: &Context, address: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let socket = MessageSocket::connect(context, address).await?;
        let hello = socket.recv().await?.ok_or("the server has closed the connection")?;
        let table = hello.first_chunk().map(RemoteMemory::from_bytes).ok_or("not a key-value store")?;
        Ok(Self { socket, table })
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), Box<dyn Error>> {
        let bucket = bucket(key.as_bytes(), value.as_bytes()).ok_or("key and value are too long")?;
        self.socket.send(&bucket).await?;
        match self.socket.recv().await?.as_deref() {
            Some([1]) => Ok(()),
            _ => Err("the server has refused the value".into()),
        }
    }

    async fn get(&self, key: &str) -> Result<Option<String>, Box<dyn Error>> {
        let place = self.table.slice(offset(key.as_bytes()), BUCKET).ok_or("the table is too small")?;
        for _ in 0..ATTEMPTS {
            let mut bytes = [0; BUCKET as usize];
            self.socket.read(place, &mut bytes).await?;
            let (sum, rest) = bytes.split_at(HEADER - 2);
            let (key_len, value_len) = (usize::from(rest[0]), usize::from(rest[1]));
            if sum == [0; HEADER - 2] {
                return Ok(None);
            }
            let Some(content) = rest.get(..2 + key_len + value_len) else { continue };
            if sum == checksum(content).to_be_bytes() {
                let (found, value) = content[2..].split_at(key_len);
                let value = String::from_utf8_lossy(value).into_owned();
                return Ok((found == key.as_bytes()).then_some(value));
            }
        }
        Err("the bucket changes all the time".into())
    }
}
