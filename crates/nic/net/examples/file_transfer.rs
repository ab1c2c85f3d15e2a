//! Sends a file over a byte stream and shows the progress, with smol.
//!
//! ```text
//! cargo run --release -p roxie-net --example file_transfer -- receive 127.0.0.1:7471 copy.iso &
//! cargo run --release -p roxie-net --example file_transfer -- send 127.0.0.1:7471 image.iso
//! ```
//!
//! The sender begins with the length of the file, 8 bytes in network byte order. The receiver answers with
//! one byte when the file is complete on its disk.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roxie::verbs::{Context, Device, DeviceConfig};
use roxie_net::smol::RdmaStream;
use smol::fs::File;
use smol::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of the stream's buffers, and of one step: more than the 64 KiB of one system call.
const CHUNK: u32 = 1 << 20;
/// Interval of progress lines.
const INTERVAL: Duration = Duration::from_millis(250);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let context = Device::open(&DeviceConfig::from_env())?.context()?;
    smol::block_on(async {
        match words[..] {
            ["receive", address, file] => receive(&context, address.parse()?, file).await,
            ["send", address, file] => send(&context, address.parse()?, file).await,
            _ => Err("usage: file_transfer receive|send ADDRESS:PORT FILE".into()),
        }
    })
}

async fn receive(context: &Context, address: SocketAddr, file: &str) -> Result<(), Box<dyn Error>> {
    let listener = RdmaStream::builder(context).receive_buffer(CHUNK).send_buffer(CHUNK).listen(address)?;
    println!("listening on {}", listener.local_addr()?);
    let (mut stream, peer) = listener.accept().await?;
    let mut len = [0; 8];
    stream.read_exact(&mut len).await?;
    let mut to = File::create(file).await?;
    let len = u64::from_be_bytes(len);
    copy(&mut stream, &mut to, len).await?;
    to.sync_all().await?;
    stream.write_all(&[1]).await?;
    stream.close().await?;
    println!("received {len} bytes from {peer}");
    Ok(())
}

async fn send(context: &Context, address: SocketAddr, file: &str) -> Result<(), Box<dyn Error>> {
    let mut from = File::open(file).await?;
    let len = from.metadata().await?.len();
    let mut stream = RdmaStream::builder(context).send_buffer(CHUNK).connect(address).await?;
    let begun = Instant::now();
    stream.write_all(&len.to_be_bytes()).await?;
    copy(&mut from, &mut stream, len).await?;
    stream.close().await?;
    // Until here the peer's device has everything; from here on the peer's disk has.
    stream.read_exact(&mut [0]).await?;
    println!("sent {len} bytes in {:.3} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Copies `len` bytes, and writes the progress to the standard error output.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    len: u64,
) -> io::Result<()> {
    let begun = Instant::now();
    let (mut shown, mut done) = (begun, 0);
    let mut buffer = vec![0; CHUNK as usize];
    while done < len {
        let want = buffer.len().min(usize::try_from(len - done).unwrap_or(usize::MAX));
        let read = from.read(&mut buffer[..want]).await?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{done} of {len} bytes")));
        }
        to.write_all(&buffer[..read]).await?;
        done += read as u64;
        if shown.elapsed() >= INTERVAL || done == len {
            shown = Instant::now();
            let rate = done as f64 / begun.elapsed().as_secs_f64() / 1e6;
            eprint!("\r{:3} %  {rate:7.1} MB/s", 100 * done / len);
            io::stderr().flush()?;
        }
    }
    eprintln!();
    to.flush().await
}
