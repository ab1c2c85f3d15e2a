//! C programs with roxie's libraries. `verbs.c` and `cm.c` check the conventions of the manual pages and
//! transfer data, `members.c` reads and writes public members, `ignored.c` sets attributes without effect,
//! `builder.c` posts with `ibv_wr_*` and polls field by field, `memory.c` invalidates keys,
//! `windows.c` binds windows in every state and on every service, `objects.c` imports objects and uses device
//! memory, `counters.c` counts completions, `unmapped.c` unmaps memory, `handlers.c` handles faults of its
//! own, `events.c` waits for events, `cancelled.c` cancels threads, `xrc.c` shares receive queues,
//! `raw.c` sends and receives Ethernet frames, `killed_peer.c` kills a process, `signal.c` ends processes by
//! signals, `fork.c` forks, `rsocket.c` uses sockets, `limits.c` exhausts the
//! device, `refusals.c` makes calls that are refused, `two_devices.c` mixes objects of two devices.

use std::fs;
use std::path::Path;

mod c_program;
mod libraries;

/// The exit status of the programs when there is no usable device.
const NO_DEVICE: i32 = 77;

#[test]
fn verbs_functions_return_what_the_manual_pages_say() {
    run("verbs");
}

#[test]
fn public_members_are_written_and_read_as_by_rdma_core() {
    run("members");
}

#[test]
fn every_public_member_of_the_headers_has_a_row() {
    const STRUCTURES: [(&str, &[&str]); 2] = [
        (
            "infiniband/verbs.h",
            &[
                "ibv_device",
                "ibv_context",
                "ibv_pd",
                "ibv_mr",
                "ibv_mw",
                "ibv_ah",
                "ibv_comp_channel",
                "ibv_cq",
                "ibv_srq",
                "ibv_qp",
            ],
        ),
        ("rdma/rdma_cma.h", &["rdma_cm_id"]),
    ];
    let rows = include_str!("members.c");
    for (header, structures) in STRUCTURES {
        let Ok(text) = fs::read_to_string(Path::new("/usr/include").join(header)) else {
            return println!("skipped: needs libibverbs-dev and librdmacm-dev");
        };
        for structure in structures {
            let body = text.split_once(&format!("struct {structure} {{")).expect(structure).1;
            let members = body.split_once("\n};").expect(structure).0.lines();
            let names: Vec<_> = members
                .filter_map(|line| line.split_once(';'))
                .filter_map(|(declared, _)| {
                    declared
                        .split(['[', ' ', '\t', '*'])
                        .rfind(|word| !word.is_empty() && !word.ends_with(']'))
                })
                .collect();
            assert!(names.len() > 1, "{structure}: {names:?}");
            let missing = |name: &&str| !rows.contains(&format!("row(\"{structure}.{name}\""));
            let missing: Vec<_> = names.into_iter().filter(missing).collect();
            assert!(missing.is_empty(), "{structure}: no row for {missing:?}");
        }
    }
}

#[test]
fn attributes_that_the_manual_pages_call_ignored_are_ignored() {
    run("ignored");
}

#[test]
fn the_builder_and_extended_completion_queues_support_every_operation_and_reader() {
    run("builder");
}

#[test]
fn rdma_cm_functions_return_what_the_manual_pages_say() {
    run("cm");
}

#[test]
fn regions_and_windows_grant_exactly_the_access_they_were_created_with() {
    run("memory");
}

#[test]
fn windows_are_bound_in_the_states_and_on_the_services_that_can() {
    run("windows");
}

#[test]
fn device_memory_imports_and_buffers_work_within_a_process() {
    run("objects");
}

#[test]
fn completion_counters_count_what_completes_without_a_poll() {
    run("counters");
}

#[test]
fn a_transfer_to_unmapped_memory_fails_without_ending_the_program() {
    run("unmapped");
}

#[test]
fn handlers_of_the_program_run_as_without_the_library() {
    run("handlers");
}

#[test]
fn a_device_gives_what_it_reports_and_then_enomem() {
    run("limits");
}

#[test]
fn every_refused_call_has_a_reason_that_names_the_field() {
    run("refusals");
}

#[test]
fn calls_with_objects_of_two_devices_are_refused() {
    run("two_devices");
}

#[test]
fn asynchronous_events_are_reported_when_the_manual_pages_say() {
    run("events");
}

#[test]
fn a_thread_cancelled_while_it_posts_and_polls_leaves_the_device_working() {
    run("cancelled");
}

#[test]
fn xrc_senders_reach_the_shared_receive_queues_of_their_domain() {
    run("xrc");
}

#[test]
fn raw_packet_queue_pairs_get_the_frames_of_their_flow_rules() {
    run("raw");
}

#[test]
fn the_idle_peer_of_a_killed_process_gets_a_disconnect_event() {
    run("killed_peer");
}

#[test]
fn a_signal_ends_a_program_with_an_open_device_as_without_one() {
    run("signal");
}

#[test]
fn rsocket_functions_behave_like_socket_functions() {
    run("rsocket");
}

#[test]
fn a_connected_program_can_fork() {
    run("fork");
}

fn run(name: &str) {
    let Some(program) = c_program::compile(name) else { return };
    let Some(output) = c_program::run_with_ours(&program) else { return };
    let printed = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => printed.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| {
            println!("{line}");
        }),
        Some(NO_DEVICE) => println!("skipped: needs a network interface: {printed}"),
        _ => panic!("{:?}: {printed}{}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}
