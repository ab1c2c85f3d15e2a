//! An echo server for any number of clients, with tokio. A client sends one text and prints what comes back.
//!
//! ```text
//! cargo run --release -p roxie-net --example echo_tokio -- server 127.0.0.1:7471 &
//! cargo run --release -p roxie-net --example echo_tokio -- client 127.0.0.1:7471 "hello, RDMA"
//! ```

use std::error::Error;
use std::net::SocketAddr;

use roxie::verbs::{Context, Device, DeviceConfig};
use roxie_net::tokio::{RdmaListener, RdmaStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let context = Device::open(&DeviceConfig::from_env())?.context()?;
    match words[..] {
        ["server", address] => server(&context, address.parse()?).await,
        ["client", address, text] => client(&context, address.parse()?, text).await,
        _ => Err("usage: echo_tokio server ADDRESS:PORT | echo_tokio client ADDRESS:PORT TEXT".into()),
    }
}

async fn server(context: &Context, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = RdmaListener::bind(context, address)?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            match echo(stream).await {
                Ok(bytes) => println!("{peer}: {bytes} bytes"),
                Err(error) => eprintln!("{peer}: {error}"),
            }
        });
    }
}

async fn echo(mut stream: RdmaStream) -> std::io::Result<usize> {
    let (mut buffer, mut total) = (vec![0; 64 << 10], 0);
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            stream.shutdown().await?;
            return Ok(total);
        }
        stream.write_all(&buffer[..read]).await?;
        total += read;
    }
}

async fn client(context: &Context, address: SocketAddr, text: &str) -> Result<(), Box<dyn Error>> {
    let mut stream = RdmaStream::connect(context, address).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    let mut echoed = String::new();
    stream.read_to_string(&mut echoed).await?;
    println!("echoed: {echoed:?}");
    Ok(())
}
