//! A device on loopback, and a hostile peer that knows the protocol.
//!
//! Goal: no packet reads or changes memory that was not granted; a fault has exactly the consequences in its
//! row of the fault table (`transport/src/fault.rs`); all other connections continue. Method: a plain UDP
//! socket on 127.0.0.2 is the peer of queue pairs of this process. It sends packets with valid ICRCs and
//! reads the answers. Each test runs in a process and a domain of its own.

mod arena;
mod bystander;
#[expect(dead_code, reason = "the hostile peer sends over the network only")]
mod domain;
mod lab;
mod listener;
mod packets;
mod peer;
mod storm;
mod table;
mod victim;

#[test]
fn a_faulty_request_has_the_consequences_of_its_row() {
    domain::alone("a_faulty_request_has_the_consequences_of_its_row", table::requests);
}

#[test]
fn a_response_completes_a_work_request_with_the_status_of_its_row() {
    domain::alone("a_response_completes_a_work_request_with_the_status_of_its_row", table::answers);
}

#[test]
fn a_storm_of_hostile_packets_does_no_harm() {
    domain::alone("a_storm_of_hostile_packets_does_no_harm", storm::run);
}

#[test]
fn requests_for_services_that_do_not_exist_cost_few_system_calls() {
    domain::alone("requests_for_services_that_do_not_exist_cost_few_system_calls", listener::searches);
}
