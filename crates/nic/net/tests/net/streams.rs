//! Byte streams.

use std::io::{self, IoSlice, IoSliceMut};
use std::thread;
use std::time::Duration;

use roxie_net::{smol as on_any, tokio as on_tok};
use roxie_rsocket::{Flags, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{ANY, device, on_smol, on_tokio, pattern};

/// More than both buffers of a connection.
const LEN: usize = 3 << 20;

#[test]
fn bytes_in_both_directions_at_once_arrive_on_tokio() {
    on_tokio(async {
        let context = device();
        let listener = on_tok::RdmaListener::bind(&context, ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            exchange(stream).await
        });
        let client = on_tok::RdmaStream::connect(&context, address).await.expect("the server listens");
        assert_eq!(client.peer_addr().expect("it is connected"), address);
        let received = exchange(client).await;
        assert!(received == pattern(LEN) && server.await.expect("no panic") == received);
    });
}

/// Sends and receives at once, with two halves in two tasks; returns what arrived.
async fn exchange(stream: on_tok::RdmaStream) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sender = tokio::spawn(async move {
        writer.write_all(&pattern(LEN)).await.expect("the peer reads");
        writer.shutdown().await.expect("the peer acknowledges");
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received).await.expect("the peer ends its stream");
    sender.await.expect("no panic");
    received
}

#[test]
fn bytes_in_both_directions_at_once_arrive_on_smol() {
    use smol::io::{AsyncReadExt, AsyncWriteExt};
    on_smol(async {
        let context = device();
        let listener = on_any::RdmaListener::bind(&context, ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let exchange = async |stream: on_any::RdmaStream| {
            let (mut reader, mut writer) = smol::io::split(stream);
            let send = async {
                writer.write_all(&pattern(LEN)).await?;
                writer.close().await
            };
            let mut received = Vec::new();
            let (sent, read) = smol::future::zip(send, reader.read_to_end(&mut received)).await;
            sent.and(read).map(|_| received)
        };
        let server = async { exchange(listener.accept().await?.0).await };
        let client = async { exchange(on_any::RdmaStream::connect(&context, address).await?).await };
        let (served, received) = smol::future::zip(server, client).await;
        assert!(served.expect("the client reads") == pattern(LEN));
        assert!(received.expect("the server reads") == pattern(LEN));
    });
}

#[test]
fn cancelled_reads_and_accepts_lose_nothing() {
    const SHORT: Duration = Duration::from_millis(2);
    on_tokio(async {
        let context = device();
        let listener = on_tok::RdmaListener::bind(&context, ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let sender = tokio::spawn(async move {
            let mut stream = on_tok::RdmaStream::connect(&context, address).await.expect("a listener");
            for part in pattern(20_000).chunks(500) {
                stream.write_all(part).await.expect("the peer reads");
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
        let mut stream = loop {
            if let Ok(accepted) = timeout(SHORT, listener.accept()).await {
                break accepted.expect("a connection").0;
            }
        };
        let (mut received, mut cancelled) = (Vec::new(), 0);
        loop {
            let mut part = [0; 300];
            match timeout(SHORT, stream.read(&mut part)).await {
                Ok(Ok(0)) => break,
                Ok(read) => received.extend_from_slice(&part[..read.expect("the peer sends")]),
                Err(_) => cancelled += 1,
            }
        }
        sender.await.expect("no panic");
        assert!(received == pattern(20_000), "{} bytes", received.len());
        assert!(cancelled > 0, "no read was cancelled");
    });
}

#[test]
fn a_dropped_stream_still_delivers_what_was_written() {
    on_tokio(async {
        let context = device();
        let listener = on_tok::RdmaListener::bind(&context, ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let (stream, accepted) =
            tokio::join!(on_tok::RdmaStream::connect(&context, address), listener.accept());
        let (mut stream, mut accepted) = (stream.expect("a listener"), accepted.expect("a client").0);
        stream.write_all(&pattern(50_000)).await.expect("it fits half of the buffer");
        drop(stream);
        let mut received = Vec::new();
        accepted.read_to_end(&mut received).await.expect("the peer closes in order");
        assert!(received == pattern(50_000));
        // The peer has closed the connection.
        let error = accepted.write_all(&[1]).await.expect_err("nothing reads this");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_connection_to_a_port_without_listener_is_refused() {
    on_tokio(async {
        let context = device();
        let listener = on_tok::RdmaListener::bind(&context, ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        drop(listener);
        let error = on_tok::RdmaStream::connect(&context, address).await.expect_err("nothing listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_blocking_rsocket_is_a_peer() {
    on_tokio(async {
        let context = device();
        let listener = on_tok::RdmaStream::builder(&context).receive_buffer(8192).listen(ANY);
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let peer = thread::spawn(move || -> io::Result<Vec<u8>> {
            let stream = Stream::new(&context)?;
            stream.connect(address)?;
            stream.send(&[IoSlice::new(&pattern(50_000))], Flags::default())?;
            let mut answer = [0; 4];
            let flags = Flags { wait_all: true, ..Flags::default() };
            stream.receive(&mut [IoSliceMut::new(&mut answer)], flags)?;
            stream.close();
            Ok(answer.to_vec())
        });
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut received = vec![0; 50_000];
        stream.read_exact(&mut received).await.expect("the peer sends");
        assert!(received == pattern(50_000));
        stream.write_all(b"done").await.expect("the peer reads");
        assert_eq!(stream.read(&mut received).await.expect("the peer closes"), 0);
        assert_eq!(peer.join().expect("no panic").expect("it is served"), b"done");
    });
}
