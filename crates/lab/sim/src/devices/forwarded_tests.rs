//! A queue pair that leaves its connection first takes the ACKs that another process of its host has received
//! and forwarded.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use roxie::runtime::World;
use roxie::sched::Tuning;
use transport::{QpAttr, QpAttrMask, QpState};

use super::app::Process;
use super::endpoint::Endpoint;
use super::faults::Faults;
use super::network::Network;
use super::plan::{App, Connection, Incident, Kind, Op, Plan, Verb};
use super::threads::Threads;
use super::{START_NS, connect, open};

const SENDER: usize = 0;
const RECEIVER: usize = 1;
/// Receives all packets that are for the sender.
const OTHER: usize = 2;
/// Time between two polls (nanoseconds).
const POLL_NS: u64 = 100;
const STEPS_MAX: u64 = 100_000;

fn plan() -> Plan {
    let host = |number| IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
    let app = App {
        kind: Kind::Poll,
        threads: 1,
        depth: 1,
        hook: "",
        pause_after: 0,
        pause_ns: 0,
        moderation: (0, 0),
    };
    let send =
        Op { verb: Verb::Send, offset: 0, len: 8, is_signaled: true, is_inline: true, joins_next: false };
    Plan {
        addresses: vec![host(1), host(2), host(1)],
        apps: vec![app; 3],
        connections: vec![Connection {
            ends: [SENDER, RECEIVER],
            work: [vec![send], Vec::new()],
            closes_early: [false; 2],
            is_ping_pong: false,
        }],
        faults: Faults { misroute_ppm: 1_000_000, delay_ns: 1_000, ..Faults::default() },
        incident: Incident::None,
        preempt_ppm: 0,
        share_cpu: false,
        ..Plan::draw(0)
    }
}

/// Sends a message, polls until its ACK was forwarded, and moves the queue pair to ERR.
fn send_and_leave(process: &Process) -> Result<(), String> {
    let (qp, number, memory, list) = {
        let endpoint = &mut process.endpoints.lock().expect("no thread panicked")[0];
        (endpoint.qp.clone(), endpoint.number, endpoint.memory(), endpoint.take_list(1))
    };
    let threads = &process.threads;
    // The progress thread sees that the application polls, and looks rarely from now on.
    let polling_until = threads.now_ns() + 2 * Tuning::default().watch_ns;
    let poll = || {
        threads.compute(POLL_NS);
        process.cq.poll_one().map_or(Ok(()), |wc| Err(format!("{:?} before the end", wc.status)))
    };
    while threads.now_ns() < polling_until {
        poll()?;
    }
    Endpoint::post(&qp, number, &memory, &list)?;
    while !threads.network.members.has_forwarded(SENDER) {
        poll()?;
    }
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    qp.modify(&error, QpAttrMask::STATE).map_err(|error| format!("modify: {error:?}"))?;
    let wc = process.cq.poll_one().ok_or("no completion")?;
    let mut endpoints = process.endpoints.lock().expect("no thread panicked");
    endpoints[0].complete(&wc, false)?;
    endpoints[0].finish();
    Ok(())
}

#[test]
fn an_ack_that_another_process_forwarded_completes_a_send_before_the_queue_pair_leaves() {
    let plan = plan();
    let network = Arc::new(Network::new(0, &plan));
    let end_ns = START_NS + plan.time_ns();
    let threads = Threads::new(0, plan.apps.len(), network, &plan, (end_ns, STEPS_MAX));
    let processes = open(&plan, &threads, Tuning::default());
    connect(&plan, &processes);
    for process in &processes {
        let own = Arc::clone(process);
        let body = move || match own.number {
            SENDER => {
                if let Err(what) = send_and_leave(&own) {
                    own.threads.fail(what);
                }
                own.leave();
            }
            RECEIVER => own.run(0),
            // It exists until the sender has ended, and its progress thread forwards packets.
            _ => {
                assert_eq!(own.number, OTHER);
                own.threads.compute(10 * Tuning::default().watch_ns);
                own.leave();
            }
        };
        threads.start(process.number, false, Box::new(body));
    }
    drop(processes);
    threads.run().expect("the SEND completes");
}
