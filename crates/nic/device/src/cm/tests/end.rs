//! The end of a process.

use super::*;

#[test]
fn a_process_ends_after_the_mads_that_another_thread_is_sending() {
    let world = World::new();
    let (host, client) = (&world.hosts[A], world.resolved(PortSpace::Tcp));
    client.connect(None, b"").unwrap();
    host.next_send_ms.store(20, Ordering::Relaxed);
    thread::scope(|scope| {
        let poller = scope.spawn(|| {
            drop(client);
            host.driver.poll(host.now(), &**host)
        });
        while !poller.is_finished() && host.next_send_ms.load(Ordering::Relaxed) != 0 {
            thread::yield_now();
        }
        host.driver.send_disconnects(host.now(), &**host);
        assert_eq!(host.outbox.lock().unwrap().len(), 2, "the request and its end");
    });
}
