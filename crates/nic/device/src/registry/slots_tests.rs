//! Groups that grow, further slots, and the errors at the limits.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use transport::numbering::qpn_at;

use super::domain::SMALL_SLOTS;
use super::group::Found;
use super::journal::JournalFile;
use super::key::PAGE_SLOTS;
use super::tests::{for_qp, members_of, new_domain, spawn_member, while_serving};
use super::*;
use crate::port::RxBatch;
use sys::DescriptorLimit;

fn reason(error: &io::Error) -> Option<JoinError> {
    error.get_ref()?.downcast_ref().copied()
}

/// Sends a packet for a QPN of `slot`; returns whether `queue` receives it.
fn reaches(config: &DomainConfig, slot: u16, queue: impl AsFd) -> bool {
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let payload = for_qp(qpn_at(slot, 0x20).value());
    sender.send_to(&payload, (Ipv4Addr::LOCALHOST, config.udp_port)).unwrap();
    sys::discard_waiting(queue.as_fd()) == 1
}

#[test]
fn a_group_grows_while_members_claim_slots_and_every_slot_gets_its_packets() {
    let config = new_domain();
    let all = members_of(&config, 2);
    let [a, b] = &all[..] else { unreachable!() };
    let pages = || a.server.socket_set.pages().unwrap();
    assert_eq!(pages(), 1);
    let further: Vec<FurtherSlot> = (0..2 * PAGE_SLOTS).map(|_| b.claim_slot().unwrap()).collect();
    assert_eq!(pages(), 4, "their number doubles");
    for FurtherSlot { slot, queue } in &further {
        assert!(reaches(&config, *slot, queue), "slot {slot}");
    }
    for member in [a, b] {
        assert!(reaches(&config, member.slot(), &member.queue), "slot {}", member.slot());
    }
    // A slot without a page has no process, and the others get nothing that is theirs.
    let missing = (0..SLOTS).find(|slot| !a.server.socket_set.has_slot(*slot, pages())).unwrap();
    assert!(matches!(a.server.socket_set.queue_of(missing), Ok(Found::NoPage)));
    let connects = a.connects();
    let batch = RxBatch::of_test(&[1; 8]);
    assert_eq!(a.forward(missing, &batch).unwrap(), ForwardOutcome::NoMember);
    assert_eq!(a.connects(), connects, "no connection is tried for a slot without an owner");
    // Packets for a further slot are handed to its process.
    let (outcome, got) = while_serving(&[b], || a.forward(further[0].slot, &batch).unwrap());
    assert_eq!((outcome, got.len()), (ForwardOutcome::Delivered, 1));
}

#[test]
fn all_slots_of_a_process_are_free_when_it_has_ended() {
    let config = new_domain();
    let a = Membership::join(&config).unwrap();
    let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
    let slots: Vec<u16> = (0..3).map(|_| b.claim_slot().unwrap().slot).chain([b.slot()]).collect();
    let taken = |slot: &u16| sys::bind_seqpacket(&a.server.group.slot(*slot)).is_err();
    assert!(slots.iter().all(taken));
    assert!(slots.iter().all(|slot| a.journal_file.owner(*slot) == Some(b.slot())));
    drop(b);
    assert!(!slots.iter().any(taken));
    assert!(slots.iter().all(|slot| a.journal_file.owner(*slot).is_none()));
    // A process that is killed leaves its entry to the member that notices its death.
    let ((mut child, slot), _) = while_serving(&[&a], || spawn_member(&config));
    assert_eq!(a.journal_file.owner(slot), Some(slot));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!taken(&slot));
    let until = sys::now_ns() + 3_000_000_000;
    while a.journal_file.owner(slot).is_some() {
        a.poll_listener(&mut |_| {});
        a.take_disconnect_notices();
        assert!(sys::now_ns() < until);
    }
}

#[test]
fn a_slot_that_was_released_is_free_and_the_others_are_not() {
    let config = new_domain();
    let a = Membership::join(&config).unwrap();
    let [kept, released] = [(); 2].map(|()| a.claim_slot().unwrap().slot);
    a.release_slot(released);
    // The first slot belongs to the membership.
    a.release_slot(a.slot());
    let owners = [kept, a.slot(), released].map(|slot| a.journal_file.owner(slot));
    assert_eq!(owners, [Some(a.slot()), Some(a.slot()), None]);
    assert!(sys::bind_seqpacket(&a.server.group.slot(released)).is_ok());
    assert!(sys::bind_seqpacket(&a.server.group.slot(kept)).is_err());
    assert!(sys::bind_seqpacket(&a.server.group.slot(a.slot())).is_err());
}

#[test]
fn a_page_that_a_process_did_not_finish_is_completed_by_the_next_one() {
    let config = new_domain();
    let a = Membership::join(&config).unwrap();
    let set = &a.server.socket_set;
    // As a process leaves it that is killed after it has bound 10 sockets.
    set.add_unfinished_page(1, 10, config.udp_port).unwrap();
    let further: Vec<FurtherSlot> = (0..PAGE_SLOTS + 5).map(|_| a.claim_slot().unwrap()).collect();
    assert_eq!(set.pages().unwrap(), 2);
    for FurtherSlot { slot, queue } in &further {
        assert!(reaches(&config, *slot, queue), "slot {slot}");
    }
}

#[test]
fn a_claim_beyond_the_last_slot_is_refused_with_the_reason() {
    let config = new_domain();
    let _limit = DescriptorLimit::raise();
    let a = Membership::join(&config).unwrap();
    let error = loop {
        match a.claim_slot() {
            // Keeps one descriptor of the slot less.
            Ok(further) => drop(further),
            Err(error) => break error,
        }
    };
    let claimed = 1 + a.server.further().len();
    if error.raw_os_error() == Some(libc::EMFILE) || reason(&error) == Some(JoinError::TooFewDescriptors) {
        println!("skipped after {claimed} slots: the hard limit of descriptors is too low");
        return;
    }
    assert_eq!((reason(&error), claimed), (Some(JoinError::Full), usize::from(SLOTS)));
    assert!(error.to_string().contains("4095 slots"), "{error}");
}

#[test]
fn small_queue_pair_numbers_are_those_of_the_first_slots() {
    let config = DomainConfig { small_qpns: true, ..new_domain() };
    let a = Membership::join(&config).unwrap();
    let further = (1..SMALL_SLOTS).map(|_| a.claim_slot().unwrap().slot);
    let mut slots: Vec<_> = further.chain([a.slot()]).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..SMALL_SLOTS).collect::<Vec<_>>());
    assert!(qpn_at(SMALL_SLOTS - 1, 0xfff).value() < 65_535);
    assert_eq!(reason(&a.claim_slot().map(drop).unwrap_err()), Some(JoinError::NoSmallSlot));
    let others = DomainConfig { small_qpns: false, ..config };
    let (slot, _) = while_serving(&[&a], || Membership::join(&others).unwrap().slot());
    assert!(slot >= SMALL_SLOTS);
}

#[test]
fn members_of_another_version_are_named_as_the_reason() {
    let port = new_domain().udp_port;
    let config = DomainConfig::parse(&format!("test-{:08x}:{port}", sys::random_u64() as u32)).unwrap();
    let _their_socket = UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, port)).unwrap();
    let busy = Membership::join(&config).unwrap_err();
    assert_eq!(reason(&busy), Some(JoinError::PortBusy { port }));
    let name = config.name.replace("roxie/2", "roxie/1");
    let _their_name = sys::bind_seqpacket(&format!("{name}/0123456789abcdef/slot/7")).unwrap();
    let error = Membership::join(&config).unwrap_err();
    assert_eq!(reason(&error), Some(JoinError::OtherVersion { port }));
}

#[test]
fn a_claim_waits_for_the_process_that_adds_slots_and_goes_on_when_it_has_ended() {
    let config = new_domain();
    let a = Membership::join(&config).unwrap();
    // One number of 4,096 is no slot, and may be in the first page.
    let slots = (0..SLOTS).filter(|slot| a.server.socket_set.has_slot(*slot, 1)).count();
    let further: Vec<FurtherSlot> = (1..slots).map(|_| a.claim_slot().unwrap()).collect();
    let adding = sys::bind_seqpacket(&a.server.group.growth()).unwrap();
    sys::listen(adding.as_fd(), 8).unwrap();
    let claimed = std::sync::OnceLock::new();
    std::thread::scope(|scope| {
        scope.spawn(|| claimed.set(a.claim_slot().unwrap().slot));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(claimed.get(), None);
        drop(adding);
    });
    assert!(claimed.get().is_some() && a.server.socket_set.pages().unwrap() == 2);
    drop(further);
}

#[test]
fn a_guide_that_leads_nowhere_does_not_stop_a_join() {
    let config = new_domain();
    let a = Membership::join(&config).unwrap();
    let guide = || meeting::guide(&config.name);
    assert_eq!(guide(), Some(a.server.group.slot(a.slot())));
    for text in ["nothing", "roxie/2/nothing", &a.server.group.slot(a.slot() ^ 1)] {
        meeting::set_guide(&config.name, text);
        let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
        assert_eq!(b.server.group, a.server.group);
        assert_eq!(guide(), Some(a.server.group.slot(a.slot())), "{text}");
    }
}

#[test]
fn a_member_is_alone_until_another_joins_and_once_it_has_left() {
    let config = new_domain();
    let first = Membership::join(&config).unwrap();
    // Its own further slots are no members.
    let further = first.claim_slot().unwrap();
    assert!(first.is_alone() && first.has_member(first.slot()) && first.has_member(further.slot));
    let (second, _) = while_serving(&[&first], || Membership::join(&config).unwrap());
    let slot = second.slot();
    assert!(!first.is_alone() && !second.is_alone() && first.has_member(slot));
    drop(second);
    assert!(first.is_alone() && !first.has_member(slot));
}

#[test]
fn a_member_that_cannot_read_the_table_of_slots_does_not_count_as_alone() {
    let mut member = Membership::join(&new_domain()).unwrap();
    let unreadable = File::options().write(true).open("/dev/null").unwrap();
    member.journal_file = Arc::new(JournalFile::from(OwnedFd::from(unreadable)));
    assert!(!member.is_alone());
}
