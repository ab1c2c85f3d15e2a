//! Ownership of an interface, foreign programs, deletion, and links that go down.

use super::*;

#[test]
fn a_second_process_on_an_interface_learns_the_id_of_the_first() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (a, b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let (error, inner) = *net.try_xsk(0, Mode::Auto, 5000).unwrap_err();
    assert!(matches!(error, XskError::Owned { pid } if pid == Some(std::process::id())), "{error}");
    assert_eq!(inner.report().description, "udp", "the UDP port is returned");
    drop((a, inner));
    drop((net.xsk(0, XdpMode::Generic), b));
}

#[test]
fn a_foreign_program_is_reported_and_stays() {
    let Some(net) = Net::new(1500, 1) else { return };
    let pass = bpf::Recipe::verdict(bpf::XdpAction::Pass);
    let pass = pass.program("their_own", bpf::ProgramKind::Xdp).unwrap();
    let theirs = net.hosts[0].visit(|| crate::xdp::attach(ifindex(), &pass, Mode::Auto).unwrap());
    for mode in [Mode::Auto, Mode::Only(XdpMode::Generic)] {
        let (error, _udp) = *net.try_xsk(0, mode, UDP_PORT).unwrap_err();
        assert!(
            error.to_string().contains(&format!("id {}, their_own, native mode", theirs.id())),
            "{error}"
        );
        assert_eq!(error.errno(), libc::EBUSY);
        assert!(error.remedy().starts_with("have its owner take it off, or"), "{}", error.remedy());
    }
    assert_eq!(net.hosts[0].visit(|| theirs.presence().unwrap()), Presence::On);
}

/// Moves packets from host 1 to host 0 until the port there has looked at its program.
fn wait_for_program_check(a: &mut XskPort, b: &mut XskPort, net: &Net) {
    let to_b = flow(net, b, V4, 1);
    let before = (a.program.lost, a.program.is_missing);
    let start = Instant::now();
    net.hosts[0].visit(|| {
        while (a.program.lost, a.program.is_missing) == before {
            assert!(start.elapsed() < Duration::from_secs(5), "no loss was detected");
            a.recv(RxQueues::ALL.into(), &mut |_| {});
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    transfer(b, a, to_b, V4, 1, mixed(0, &[64], 50));
}

#[test]
fn a_detached_program_is_attached_again_once() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let take_off = || {
        let there = Netlink::new().unwrap().link(ifindex()).unwrap().xdp[0];
        crate::xdp::remove(ifindex(), there, true).unwrap();
    };
    net.hosts[0].visit(take_off);
    wait_for_program_check(&mut a, &mut b, &net);
    assert_eq!((a.program.lost, a.program.put_back, a.program.is_missing), (1, 1, false));
    let received = a.counters.rx_packets;
    assert!(received >= 50, "through the sockets again: {received}");
    net.hosts[0].visit(take_off);
    wait_for_program_check(&mut a, &mut b, &net);
    assert_eq!((a.program.lost, a.program.put_back, a.program.is_missing), (2, 1, true));
    assert_eq!(a.counters.rx_packets, received, "these went through the UDP socket");
    assert!(a.description().contains("not on the interface any more"), "{}", a.description());
}

#[test]
fn a_program_that_replaces_the_ports_own_is_detected_and_stays() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let pass = bpf::Recipe::verdict(bpf::XdpAction::Pass);
    let pass = pass.program("their_own", bpf::ProgramKind::Xdp).unwrap();
    let (pass, _maps) = sys::bpf::Program::load_with_maps(&pass).unwrap();
    net.hosts[0].visit(|| crate::xdp::install(ifindex(), &pass, Mode::Auto, true).unwrap());
    wait_for_program_check(&mut a, &mut b, &net);
    assert_eq!((a.program.lost, a.program.put_back, a.program.is_missing), (1, 0, true));
    let there = net.hosts[0].visit(|| Netlink::new().unwrap().link(ifindex()).unwrap().xdp[0]);
    assert_eq!(there.program_id, pass.info().unwrap().id);
}

#[test]
fn a_second_port_is_refused_with_the_name_of_the_first() {
    let Some(net) = Net::new(1500, 1) else { return };
    let a = net.xsk(0, XdpMode::Native);
    let id = a.steering.as_ref().unwrap().id();
    let (config, ifindex) = net.hosts[0].visit(|| (Mode::Auto, ifindex()));
    let error = net.hosts[0]
        .visit(|| crate::xdp::Steering::attach(ifindex, UDP_PORT, 1, config).map(drop).unwrap_err());
    assert_eq!(
        error.to_string(),
        format!("XDP program already attached (id {id}, roxie_steer, native mode)")
    );
    drop(a);
    let shown = net.hosts[0].visit(|| run("ip", "-d link show dev veth0"));
    assert!(!shown.contains("xdp"), "{shown}");
    // The next one succeeds at once.
    drop(net.xsk(0, XdpMode::Generic));
}

#[test]
fn a_port_on_a_deleted_interface_reports_that_and_continues() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let there = flow(&net, &mut a, V4, 0);
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[500], 500));
    net.hosts[0].visit(|| ip("link del veth0"));
    for number in 0..2000 {
        commit(&mut a, there, &packet(1, number, 500));
        if number % 50 == 0 {
            a.flush();
            a.recv(RxQueues::ALL.into(), &mut |_| {});
            b.recv(RxQueues::ALL.into(), &mut |_| {});
        }
    }
    a.flush();
    assert!(a.paths.link.gone);
    assert!(a.flows.iter().all(|flow| !flow.is_direct), "the UDP port reports the error");
    let counters = a.report().counters;
    assert!(counters.tx_unreachable + counters.tx_errors > 0, "{counters:?}");
    assert_eq!((a.close().lost, b.close().lost), (0, 0));
}

#[test]
fn a_link_that_goes_down_and_up_carries_packets_again() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let there = flow(&net, &mut a, V4, 0);
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[500], 500));
    net.hosts[0].visit(|| ip("link set veth0 down"));
    for number in 0..500 {
        commit(&mut a, there, &packet(1, number, 500));
        a.flush();
        a.recv(RxQueues::ALL.into(), &mut |_| {});
    }
    net.hosts[0].visit(|| ip("link set veth0 up"));
    // Packets queued meanwhile may still arrive; then all do again.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        commit(&mut a, there, &packet(1, 9999, 500));
        a.flush();
        a.recv(RxQueues::ALL.into(), &mut |_| {});
        if receive(&mut b, V4, 0).iter().any(|p| p[12..16] == 9999u32.to_be_bytes()) && a.flows[0].is_direct {
            break;
        }
        assert!(Instant::now() < deadline, "{:?}", a.report().rows);
        std::thread::sleep(Duration::from_millis(1));
    }
    while !receive(&mut b, V4, 0).is_empty() {}
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[500], 500));
    assert_eq!((a.close().lost, b.close().lost), (0, 0));
}
