//! Two sockets on the two ends of a veth, frames between them; as root, else skipped.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use ::bpf::{ProgramKind, Recipe, Select};

use super::*;
use crate::bpf::{Map, Program, XdpLink};
use crate::testing::{enter_new_netns, ip};
use crate::{Netlink, PollFd, XdpMode, poll};

const QUEUE: u32 = 0;
/// Receive units, then transmit units of two chunks.
const REGIONS: [(u32, u32); 2] = [(64, 1), (32, 2)];
const SIZES: [u32; 4] = [64, 64, 64, 64];

/// One end: a program that redirects every frame to the socket of its queue, and that socket.
struct End {
    rings: Rings,
    socket: XskSocket,
    umem: Arc<Umem>,
    spare: Vec<Chunk>,
    to_send: Vec<Chunk>,
    _link: XdpLink,
    _map: Map,
}

impl End {
    fn new(netdev: &str, mode: XdpMode, config: UmemConfig, fragments: bool) -> End {
        let links = Netlink::new().unwrap().links().unwrap();
        let ifindex = links.iter().find(|l| l.name == netdev).unwrap().index;
        let recipe =
            Recipe { select: Select::All, stages: Vec::new(), frags: fragments, ..Recipe::steer(4791, 4) };
        let redirect = recipe.program("test_redirect", ProgramKind::Xdp).unwrap();
        let (program, mut maps) = Program::load_with_maps(&redirect).unwrap();
        let map = maps.swap_remove(redirect.map("xsks").unwrap().index());
        let link = XdpLink::attach(&program, ifindex, mode).unwrap();
        assert_eq!(link.info().unwrap(), (program.info().unwrap().id, ifindex));
        let (umem, mut tokens) = Umem::new(config, &REGIONS).unwrap();
        let umem = Arc::new(umem);
        let (socket, mut rings) = XskSocket::new(&umem, SIZES, None).unwrap();
        let to_send = tokens.pop().unwrap();
        for chunk in tokens.pop().unwrap() {
            rings.fill.push(chunk).unwrap();
        }
        rings.fill.submit();
        socket.bind(&Bind { ifindex, queue: QUEUE, zero_copy: false, fragments }, None).unwrap();
        assert!(!socket.is_zero_copy().unwrap());
        map.update(&QUEUE.to_ne_bytes(), &socket.as_fd().as_raw_fd().to_ne_bytes()).unwrap();
        End { rings, socket, umem, spare: Vec::new(), to_send, _link: link, _map: map }
    }

    /// Sends the frame at `offset` of a chunk.
    fn send(&mut self, offset: usize, frame: &[u8]) {
        let mut chunk = self.to_send.pop().unwrap();
        chunk.bytes_mut()[offset..offset + frame.len()].copy_from_slice(frame);
        self.rings.tx.push(chunk, offset, frame.len()).unwrap();
        self.rings.tx.submit();
        self.kick();
    }

    fn kick(&mut self) {
        assert!(self.rings.tx.needs_wakeup(), "always, when copying");
        for _ in 0..1000 {
            match self.socket.wake_tx() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => done.unwrap(),
            }
            if self.rings.tx.waiting() == 0 {
                return;
            }
        }
        panic!("the kernel does not take what is queued");
    }

    /// Waits for the next packet; returns its joined pieces, and their number.
    fn receive(&mut self) -> (Vec<u8>, usize) {
        let (mut bytes, mut pieces) = (Vec::new(), 0);
        loop {
            let Some(piece) = self.rings.rx.pop() else {
                let mut fds = [PollFd::readable(self.socket.as_fd().as_raw_fd())];
                assert_eq!(
                    poll(&mut fds, Some(2_000_000_000)).unwrap(),
                    1,
                    "nothing comes: {:?}",
                    self.socket.statistics()
                );
                continue;
            };
            bytes.extend(piece.bytes());
            pieces += 1;
            self.spare.push(piece.chunk);
            if !piece.more {
                break;
            }
        }
        while let Some(chunk) = self.spare.pop() {
            self.rings.fill.push(chunk).unwrap();
        }
        self.rings.fill.submit();
        (bytes, pieces)
    }

    fn reap(&mut self) {
        while let Some(chunk) = self.rings.completion.pop() {
            self.to_send.push(chunk);
        }
    }

    /// Closes everything; all chunks must be available again.
    fn close(self) {
        let End { rings, socket, umem, spare, to_send, _link, _map } = self;
        assert!(umem.reclaim().is_none(), "the socket is open");
        drop((_link, rings, socket));
        let mut back = umem.reclaim().unwrap();
        back[0].extend(spare);
        back[1].extend(to_send);
        for (region, (units, _)) in back.iter().zip(REGIONS) {
            assert_eq!(region.len(), units as usize);
        }
        assert_eq!(umem.regions().iter().map(|r| r.lent()).sum::<u32>(), 0);
    }
}

fn veth(mtu: u32) -> bool {
    if !enter_new_netns() {
        return false;
    }
    ip("link add veth0 type veth peer name veth1");
    for netdev in ["veth0", "veth1"] {
        ip(&format!("link set {netdev} mtu {mtu} addrgenmode none up"));
    }
    true
}

/// An Ethernet frame of an experimental type with a pattern in it.
fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(number)).collect();
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Sends more frames than there are chunks, so each chunk is reused several times.
fn ping_pong(mode: XdpMode, config: UmemConfig) {
    let (mut a, mut b) = (End::new("veth0", mode, config, false), End::new("veth1", mode, config, false));
    for i in 0..200u8 {
        let sent = frame(i, 60 + usize::from(i));
        a.send(100, &sent);
        assert_eq!(b.receive(), (sent.clone(), 1));
        b.send(0, &sent);
        assert_eq!(a.receive(), (sent, 1));
        a.reap();
        b.reap();
    }
    assert_eq!((a.to_send.len(), b.to_send.len()), (32, 32));
    assert_eq!((a.rings.rx.strays(), a.rings.completion.strays()), (0, 0));
    assert_eq!(a.socket.statistics().unwrap().rx_dropped, 0);
    a.close();
    b.close();
}

#[test]
fn frames_travel_in_native_mode() {
    if veth(1500) {
        ping_pong(XdpMode::Native, UmemConfig::default());
    }
}

#[test]
fn frames_travel_in_generic_mode() {
    if veth(1500) {
        ping_pong(XdpMode::Generic, UmemConfig::default());
    }
}

#[test]
fn chunks_may_be_small_have_headroom_or_begin_anywhere() {
    for config in [
        UmemConfig { chunk_len: 2048, headroom: 128, ..UmemConfig::default() },
        UmemConfig { chunk_len: 3000, headroom: 64, unaligned: true },
    ] {
        if veth(1500) {
            ping_pong(XdpMode::Native, config);
        }
    }
}

#[test]
fn a_jumbo_frame_takes_several_pieces_both_ways() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        if !veth(9000) {
            return;
        }
        let config = UmemConfig::default();
        let (mut a, mut b) = (End::new("veth0", mode, config, true), End::new("veth1", mode, config, true));
        for i in 0..100u8 {
            let sent = frame(i, 4170);
            // Crosses from the first chunk of the unit into the second.
            a.send(86, &sent);
            let (bytes, pieces) = b.receive();
            assert_eq!((bytes, pieces), (sent, 2), "{mode}");
            a.reap();
        }
        assert_eq!((a.to_send.len(), a.rings.completion.strays()), (32, 0));
        a.close();
        b.close();
    }
}

#[test]
fn a_packet_larger_than_a_chunk_is_counted_without_fragments() {
    if !veth(9000) {
        return;
    }
    let config = UmemConfig::default();
    let (mut a, mut b) = (
        End::new("veth0", XdpMode::Generic, config, true),
        End::new("veth1", XdpMode::Generic, config, false),
    );
    a.send(0, &frame(1, 5000));
    a.send(0, &frame(2, 100));
    assert_eq!(b.receive().0, frame(2, 100));
    assert_eq!(b.socket.statistics().unwrap().rx_dropped, 1);
}

#[test]
fn a_queue_has_one_socket_and_is_free_again_a_moment_after_it_closed() {
    if !veth(1500) {
        return;
    }
    let end = End::new("veth0", XdpMode::Native, UmemConfig::default(), false);
    let ifindex = Netlink::new().unwrap().links().unwrap().iter().find(|l| l.name == "veth0").unwrap().index;
    let bind = Bind { ifindex, queue: QUEUE, zero_copy: false, fragments: false };
    let second = || {
        let (umem, _tokens) = Umem::new(UmemConfig::default(), &REGIONS).unwrap();
        let umem = Arc::new(umem);
        let (socket, rings) = XskSocket::new(&umem, SIZES, None).unwrap();
        socket.bind(&bind, None).map(|()| drop(rings))
    };
    assert_eq!(second().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    end.close();
    let start = std::time::Instant::now();
    while let Err(error) = second() {
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        assert!(start.elapsed().as_secs() < 2, "still busy");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn chunks_that_do_not_fit_a_ring_are_returned() {
    if !veth(1500) {
        return;
    }
    let mut end = End::new("veth0", XdpMode::Native, UmemConfig::default(), false);
    let (_other, mut tokens) = Umem::new(UmemConfig::default(), &REGIONS).unwrap();
    let stranger = tokens[1].pop().unwrap();
    let stranger = end.rings.tx.push(stranger, 0, 60).unwrap_err();
    end.rings.completion.pop();
    let _stranger = end.rings.fill.push(stranger).unwrap_err();
    for (offset, len) in [(0, 0), (0, 8193), (8192, 1)] {
        let chunk = end.to_send.pop().unwrap();
        end.to_send.push(end.rings.tx.push(chunk, offset, len).unwrap_err());
    }
    end.close();
}

#[test]
fn a_dropped_token_can_be_collected() {
    let (umem, mut tokens) = Umem::new(UmemConfig::default(), &REGIONS).unwrap();
    let region = Arc::clone(&umem.regions()[0]);
    assert_eq!((region.units(), region.collect(|_| panic!("no token was dropped"))), (64, 0));
    let mut chunk = tokens[0].pop().unwrap();
    chunk.bytes_mut().fill(0xa5);
    std::thread::spawn(move || drop(chunk)).join().unwrap();
    let mut found = Vec::new();
    assert_eq!(region.collect(|chunk| found.push(chunk)), 1);
    assert!(found[0].bytes().iter().all(|b| *b == 0xa5));
    assert_eq!(found[0].bytes().len(), 4096);
    drop(tokens);
    assert_eq!(region.collect(|chunk| found.push(chunk)), 63);
    drop(umem);
    found[5].bytes_mut().fill(1);
}

#[test]
fn impossible_geometries_are_refused() {
    let config = UmemConfig { chunk_len: 3000, ..UmemConfig::default() };
    assert!(Umem::new(config, &REGIONS).is_err());
    assert!(Umem::new(UmemConfig::default(), &[]).is_err());
    assert!(Umem::new(UmemConfig { chunk_len: 0, unaligned: true, ..config }, &REGIONS).is_err());
}
