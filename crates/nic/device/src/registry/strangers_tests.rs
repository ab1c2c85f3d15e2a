//! Which processes may be members, and names that strangers have taken.

use std::os::fd::AsFd;

use super::identity::{Peer, Relation};
use super::tests::{members_of, new_domain};
use super::*;
use sys::Credentials;

#[test]
fn members_are_processes_of_this_user_of_root_and_of_the_named_users() {
    let config = DomainConfig { allow_uids: vec![7, 65_534], ..new_domain() };
    for (relation, uid, admitted) in [
        (Relation::Same, 5, true),
        (Relation::Root, 0, true),
        (Relation::Other, 7, true),
        (Relation::Other, 8, false),
        // Any user may be behind the overflow id.
        (Relation::Unknown, 65_534, false),
    ] {
        let peer = Peer { credentials: Credentials { pid: 1, uid }, relation };
        assert_eq!(config.admits(peer), admitted, "{peer:?}");
    }
}

/// A process of another user may have taken names before, and may listen on them or not.
#[test]
fn names_that_a_stranger_has_taken_do_not_stop_a_new_group() {
    let config = new_domain();
    let strange = names::GroupNames::new(&config);
    let taken: Vec<_> = [format!("{}/boot", config.name), strange.slot(3), strange.slot(4)]
        .iter()
        .map(|name| sys::bind_seqpacket(name).unwrap())
        .collect();
    sys::listen(taken[1].as_fd(), 0).unwrap();
    // Its queue of connections is full.
    let full: Vec<_> = (0..2).map(|_| sys::connect_seqpacket(&strange.slot(3))).collect();
    assert!(full[1].is_err());
    let members = members_of(&config, 2);
    assert_eq!(members[0].server.group, members[1].server.group);
    assert_ne!(members[0].server.group, strange);
}
