//! Both ends of a connection in one process: two devices without sockets, a cable between their ports, and
//! a time of their own.
//!
//! Goal: an error is right only if both applications are told the right thing. The tables of faults are
//! gone through row by row (IBA 9.9.2, 9.9.3, 9.8), and of each row is shown what the requester asked, what
//! the responder answered, and at both ends: completions, asynchronous events, the state, the counters.
//! Method: everything behind the port is real, keys and memory included; the ports are ends of a [`cable`],
//! which writes down what it carries and may lose or change it. What a peer can do that is no device of
//! ours is in `tests/hostile`.
//!
//! Each row says which line of which table it is: the requester's and the responder's (IBA 9.9.2, 9.9.3,
//! C9-222; memory: 9.4, 10.6), of UC and UD (9.8.2, 9.8.3, and 10.3.1 for SQE), and of queues (10.2.9,
//! 10.8).

mod batching;
mod cable;
mod conformance;
mod end;
mod pair;
mod requester;
mod responder;
mod responder_memory;
mod row;
mod unreliable;
