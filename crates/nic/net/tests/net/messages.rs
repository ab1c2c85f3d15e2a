//! Message sockets.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use roxie::transport::Access;
use roxie::verbs::Context;
use roxie_net::tokio::{MessageListener, MessageSocket};
use roxie_net::{RemoteMemory, smol as on_any};
use tokio::time::timeout;

use super::{ANY, device, on_smol, on_tokio, pattern};

/// Returns two connected sockets with slots of 4096 bytes, and their listener.
async fn pair(context: &Context, depth: u16) -> (MessageListener, MessageSocket, MessageSocket) {
    let builder = MessageSocket::builder(context).message_len(4096).depth(depth);
    let listener = builder.clone().listen(ANY).expect("a free port");
    let address = listener.local_addr().expect("it listens");
    let (client, server) = tokio::join!(builder.connect(address), listener.accept());
    (listener, client.expect("a listener"), server.expect("a client"))
}

#[test]
fn messages_keep_their_boundaries_and_order() {
    on_tokio(async {
        let (_listener, client, server) = pair(&device(), 4).await;
        let lengths = [0, 1, 4096, 17, 0, 4095].repeat(20);
        let sender = async {
            for len in &lengths {
                client.send(&pattern(*len)).await.expect("the peer receives");
            }
            client.close().await.expect("the peer acknowledges");
        };
        let receiver = async {
            let mut received = Vec::new();
            while let Some(message) = server.recv().await.expect("no error") {
                assert!(message == pattern(message.len()));
                received.push(message.len());
            }
            received
        };
        let ((), received) = tokio::join!(sender, receiver);
        assert_eq!(received, lengths);
        let error = server.send(b"late").await.expect_err("the peer has closed the connection");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn messages_work_on_smol() {
    on_smol(async {
        let context = device();
        let listener = on_any::MessageListener::bind(&context, ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let server = async {
            let socket = listener.accept().await?;
            while let Some(message) = socket.recv().await? {
                socket.send(&message).await?;
            }
            io::Result::Ok(())
        };
        let client = async {
            let socket = on_any::MessageSocket::connect(&context, address).await?;
            for n in 0..100_u32 {
                socket.send(&n.to_be_bytes()).await?;
                assert_eq!(socket.recv().await?.as_deref(), Some(&n.to_be_bytes()[..]));
            }
            socket.close().await
        };
        let (served, sent) = smol::future::zip(server, client).await;
        served.and(sent).expect("both sides end in order");
    });
}

#[test]
fn a_socket_to_a_port_without_listener_is_refused() {
    on_tokio(async {
        let context = device();
        let listener = MessageListener::bind(&context, ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        drop(listener);
        for _ in 0..10 {
            let Err(error) = MessageSocket::connect(&context, address).await else {
                unreachable!("nothing listens")
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn a_message_longer_than_a_slot_of_the_peer_is_refused() {
    on_tokio(async {
        let context = device();
        let listener = MessageSocket::builder(&context).message_len(64).listen(ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let (client, server) = tokio::join!(MessageSocket::connect(&context, address), listener.accept());
        let (client, server) = (client.expect("a listener"), server.expect("a client"));
        assert_eq!((client.message_max(), server.message_max()), (64, 64));
        let error = client.send(&[0; 65]).await.expect_err("it does not fit");
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        client.send(&[7; 64]).await.expect("it fits");
        let error = server.recv_into(&mut [0; 10]).await.expect_err("it does not fit");
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        let mut buffer = [0; 100];
        assert_eq!(server.recv_into(&mut buffer).await.expect("it stayed"), Some(64));
        assert_eq!(buffer[..64], [7; 64]);
    });
}

#[test]
fn more_messages_than_receives_wait_for_the_receiver() {
    on_tokio(async {
        let (_listener, client, server) = pair(&device(), 2).await;
        let sender = tokio::spawn(async move {
            for n in 0..50_u8 {
                client.send(&[n]).await.expect("the peer receives at last");
            }
            client.close().await.expect("the peer receives at last");
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!sender.is_finished(), "messages were acknowledged that no receive has taken");
        for n in 0..50_u8 {
            assert_eq!(server.recv().await.expect("no error"), Some(vec![n]));
        }
        assert_eq!(server.recv().await.expect("no error"), None);
        sender.await.expect("no panic");
    });
}

#[test]
fn many_tasks_share_a_socket() {
    on_tokio(async {
        let (_listener, client, server) = pair(&device(), 3).await;
        let (client, server) = (Arc::new(client), Arc::new(server));
        let senders: Vec<_> = (0..10_u8)
            .map(|task| {
                let client = Arc::clone(&client);
                tokio::spawn(async move {
                    for n in 0..20 {
                        client.send(&[task, n]).await.expect("the peer receives");
                    }
                })
            })
            .collect();
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let mut received = Vec::new();
                    while let Some(message) = server.recv().await.expect("no error") {
                        received.push(message);
                    }
                    received
                })
            })
            .collect();
        for sender in senders {
            sender.await.expect("no panic");
        }
        client.close().await.expect("the peer acknowledges");
        let mut received = Vec::new();
        for receiver in receivers {
            received.append(&mut receiver.await.expect("no panic"));
        }
        received.sort_unstable();
        let sent: Vec<_> = (0..10_u8).flat_map(|task| (0..20).map(move |n| vec![task, n])).collect();
        assert_eq!(received, sent);
    });
}

#[test]
fn cancelled_receives_lose_no_message() {
    on_tokio(async {
        let (_listener, client, server) = pair(&device(), 4).await;
        let sender = tokio::spawn(async move {
            for n in 0..40_u8 {
                client.send(&[n]).await.expect("the peer receives");
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            client.close().await.expect("the peer acknowledges");
        });
        let (mut received, mut cancelled) = (Vec::new(), 0);
        loop {
            match timeout(Duration::from_millis(1), server.recv()).await {
                Ok(Ok(None)) => break,
                Ok(message) => received.extend(message.expect("no error").expect("not the end")),
                Err(_) => cancelled += 1,
            }
        }
        sender.await.expect("no panic");
        assert_eq!(received, (0..40).collect::<Vec<_>>());
        assert!(cancelled > 0, "no receive was cancelled");
    });
}

/// Rights of a peer.
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

#[test]
fn one_sided_operations_reach_the_memory_of_the_peer() {
    on_tokio(async {
        let (listener, client, _server) = pair(&device(), 4).await;
        let buffer = listener.expose(8192, ALL).expect("memory");
        let remote = RemoteMemory::of(&buffer);
        buffer.write(100, &pattern(3000));
        let mut bytes = vec![0; 3000];
        client.read(remote.slice(100, 3000).expect("inside"), &mut bytes).await.expect("permitted");
        assert!(bytes == pattern(3000));

        client.write(remote.slice(4096, 5).expect("inside"), b"hello").await.expect("permitted");
        let mut written = [0; 5];
        buffer.read(4096, &mut written);
        assert_eq!(&written, b"hello");

        let counter = remote.slice(8184, 8).expect("inside");
        assert_eq!(client.fetch_add(counter, 5).await.expect("permitted"), 0);
        assert_eq!(client.compare_swap(counter, 4, 9).await.expect("permitted"), 5);
        assert_eq!(client.compare_swap(counter, 5, 9).await.expect("permitted"), 5);
        assert_eq!(client.fetch_add(counter, 1).await.expect("permitted"), 9);

        let error = client.read(remote.slice(0, 8).expect("inside"), &mut [0; 9]).await;
        assert_eq!(error.expect_err("beyond the memory").raw_os_error(), Some(libc::EMSGSIZE));
    });
}

#[test]
fn cancelled_reads_free_their_slots() {
    on_tokio(async {
        // One slot only: a slot that is not freed blocks everything after it.
        const LEN: u32 = 4 << 20;
        let builder = MessageSocket::builder(&device()).message_len(LEN).depth(1);
        let listener = builder.clone().listen(ANY).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let (client, _server) = tokio::join!(builder.connect(address), listener.accept());
        let client = client.expect("a listener");
        let buffer = listener.expose(LEN as usize, ALL).expect("memory");
        buffer.write(0, &pattern(LEN as usize));
        let remote = RemoteMemory::of(&buffer);
        let mut cancelled = 0;
        for _ in 0..20 {
            let mut bytes = vec![0; LEN as usize];
            let mut read = std::pin::pin!(client.read(remote, &mut bytes));
            // Posted at the first poll, and dropped before it completes.
            let done = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx).is_ready()));
            cancelled += u32::from(!done.await);
        }
        assert!(cancelled > 0, "no read was cancelled");
        let mut bytes = vec![0; LEN as usize];
        client.read(remote, &mut bytes).await.expect("permitted");
        assert!(bytes == pattern(LEN as usize));
    });
}

#[test]
fn a_read_without_permission_ends_the_connection() {
    on_tokio(async {
        let (listener, client, server) = pair(&device(), 4).await;
        let buffer = listener.expose(4096, Access::LOCAL_WRITE).expect("memory");
        let error = client.read(RemoteMemory::of(&buffer), &mut [0; 8]).await.expect_err("not permitted");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let later = client.send(b"later").await.expect_err("the connection has failed");
        assert_eq!(later.kind(), io::ErrorKind::PermissionDenied);
        // The peer sees its queue pair fail, or the disconnect, whatever comes first.
        match server.recv().await {
            Ok(None) => {}
            other => assert_eq!(other.expect_err("no message").kind(), io::ErrorKind::ConnectionReset),
        }
    });
}

#[test]
fn a_peer_that_is_dropped_ends_waiting_receives() {
    on_tokio(async {
        let (_listener, client, server) = pair(&device(), 4).await;
        let waiting = tokio::spawn(async move { server.recv().await });
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(client);
        assert_eq!(waiting.await.expect("no panic").expect("an orderly end"), None);
    });
}
