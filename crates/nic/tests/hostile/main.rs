//! A live device on loopback and a peer that knows the protocol and means harm.
//!
//! Goal: whatever a peer sends, memory that was not granted is neither changed nor told, a fault has exactly the
//! consequences of its row in the tables (`transport/src/fault.rs`), and everybody else is served as before. Method: a plain UDP
//! socket on 127.0.0.2 is the peer of queue pairs of this process, sends packets with right ICRCs and reads the
//! answers. Each test runs in a process and a domain of its own.
//!
//! `ROXIE_HOSTILE_PACKETS=n` sends n packets (default 200000), `ROXIE_HOSTILE_SEED=n` others.

mod arena;
mod bystander;
#[expect(dead_code, reason = "packets of a stranger come by the network")]
mod domain;
mod lab;
mod listener;
mod packets;
mod peer;
mod rng;
mod storm;
mod table;
mod victim;

#[test]
fn a_fault_of_a_request_has_the_consequences_of_its_row() {
    domain::alone("a_fault_of_a_request_has_the_consequences_of_its_row", table::requests);
}

#[test]
fn an_answer_ends_a_work_request_as_its_row_says() {
    domain::alone("an_answer_ends_a_work_request_as_its_row_says", table::answers);
}

#[test]
fn a_storm_of_hostile_packets_does_no_harm() {
    domain::alone("a_storm_of_hostile_packets_does_no_harm", storm::run);
}
