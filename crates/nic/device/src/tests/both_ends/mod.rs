//! Tests of both ends of a connection in one process: two devices without sockets, a [`cable`] between their
//! ports, and a virtual clock.
//!
//! Goal: both applications learn of an error as the specification says. The tests go through the fault
//! tables row by row (IBA 9.9.2, 9.9.3, 9.8). Each row checks the requests, the responses, and at both ends
//! the completions, asynchronous events, QP state and counters.
//!
//! Method: everything behind the port is real, keys and memory included. The cable records what it carries,
//! and a test can make it drop or change packets. Packets that no roxie peer would send are tested in
//! `tests/hostile`.
//!
//! Each row names its rule: a line of the table of the requester or the responder (IBA 9.9.2, 9.9.3, C9-222;
//! memory: 9.4, 10.6), of UC and UD (9.8.2, 9.8.3, and 10.3.1 for SQE), or of queues (10.2.9, 10.8).

mod batching;
mod cable;
mod chaos;
mod conformance;
mod end;
mod leaving;
mod pair;
mod requester;
mod responder;
mod responder_memory;
mod row;
mod unreliable;
