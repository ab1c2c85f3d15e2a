//! C programs with our libraries: `verbs.c` and `cm.c` check the manual pages' conventions and transfer data, `builder.c`
//! posts by `ibv_wr_*` and polls field by field, `memory.c` takes keys back, `unmapped.c` memory, `events.c` waits for events, `xrc.c` shares
//! receive queues, `will.c` kills a process, `signal.c` ends some by
//! signals, `fork.c` forks, `rsocket.c` uses sockets.

mod c_program;
mod libraries;

/// What the programs exit with when there is no usable device.
const NO_DEVICE: i32 = 77;

#[test]
fn verbs_programs_get_the_answers_of_the_manual_pages() {
    run("verbs");
}

#[test]
fn the_builder_and_extended_completion_queues_do_all_they_offer() {
    run("builder");
}

#[test]
fn rdma_cm_programs_get_the_answers_of_the_manual_pages() {
    run("cm");
}

#[test]
fn regions_and_windows_grant_what_they_say_and_nothing_else() {
    run("memory");
}

#[test]
fn unmapped_memory_fails_the_transfer_and_not_the_program() {
    run("unmapped");
}

#[test]
fn events_come_when_the_manual_pages_say() {
    run("events");
}

#[test]
fn extended_reliable_connections_reach_the_queues_of_their_domain() {
    run("xrc");
}

#[test]
fn the_peer_of_a_killed_process_is_told_even_if_it_waits_idle() {
    run("will");
}

#[test]
fn signals_end_a_program_as_they_do_without_a_device() {
    run("signal");
}

#[test]
fn socket_programs_get_what_sockets_give() {
    run("rsocket");
}

#[test]
fn a_program_forks_while_it_is_connected() {
    run("fork");
}

fn run(name: &str) {
    let Some(program) = c_program::compile(name) else { return };
    let Some(output) = c_program::run_with_ours(&program) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => {}
        Some(NO_DEVICE) => println!("skipped: needs a network interface: {said}"),
        _ => panic!("{:?}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}
