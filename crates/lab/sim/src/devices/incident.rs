//! What happens to processes while they run: they are stopped or killed, or get a CPU only now and then.

use std::sync::Arc;

use roxie::runtime::World;

use super::deaths::{Death, Kills};
use super::plan::{Incident, Plan};
use super::threads::Threads;

/// How often the run is looked at for its end while a dead process waits for it.
const END_CHECK_NS: u64 = 1_000_000;

/// Starts the thread that stops or kills a process, and ends the run for the dead when all others have
/// ended.
pub(super) fn start(threads: &Arc<Threads>, plan: &Plan) {
    let (run, victim, incident) = (Arc::clone(threads), plan.victim, plan.incident.clone());
    let (end_ns, processes) = (threads.end_ns, plan.apps.len());
    let body = move || match incident {
        // The last two: see `hosts`.
        Incident::None | Incident::LinkDown(..) | Incident::NetdevLost(..) => {}
        Incident::Stop(at, until) => {
            run.sleep(&[], at);
            run.stop(victim, until);
        }
        Incident::Kill(at) => {
            run.sleep(&[], at);
            run.kill(victim, (0, 0));
            finish_after(&run, processes);
        }
        Incident::Kills(kills) => {
            happen(&kills, &run);
            finish_after(&run, kills.peers);
        }
        Incident::Pauses { run_ns, pause_ns, both, .. } => {
            // Sleeps of a run that is over end at once.
            while !run.is_over() && run.has_living(processes) && run.now_ns() < end_ns {
                let at = run.now_ns() + run_ns;
                run.sleep(&[], at);
                run.stop(victim, at + pause_ns);
                if both {
                    run.sleep(&[], at + pause_ns / 2);
                    run.stop(1 - victim, at + pause_ns / 2 + pause_ns);
                }
                run.sleep(&[], at + pause_ns);
            }
        }
    };
    threads.start_outside(Box::new(body));
}

/// Ends the run when the first `processes` processes have ended, as far as they live.
fn finish_after(threads: &Threads, processes: usize) {
    while threads.has_living(processes) && threads.now_ns() < threads.end_ns {
        threads.compute(END_CHECK_NS);
    }
    threads.finish();
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Kill(Death),
    Stop(usize, u64),
}

/// Stops and kills the processes when it is time.
fn happen(kills: &Kills, threads: &Threads) {
    let mut events: Vec<(u64, Event)> =
        kills.deaths.iter().map(|death| (death.at_ns, Event::Kill(*death))).collect();
    events.extend(kills.stop.map(|(process, from, to)| (from, Event::Stop(process, to))));
    events.sort_by_key(|(at, _)| *at);
    for (at, event) in events {
        threads.sleep(&[], at);
        match event {
            Event::Kill(Death { process, exits_ns, releases_ns, .. }) => {
                threads.kill(process, (exits_ns, releases_ns));
            }
            Event::Stop(process, to) => threads.stop(process, to),
        }
    }
}
