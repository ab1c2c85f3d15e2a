//! An application that polls is left alone by the progress thread although one of its CQs is armed. UCX is
//! such an application: it arms the CQ of its datagrams and polls the others.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;

use std::time::{Duration, Instant};

use roxie::verbs::{Device, DeviceConfig};

/// How long the application polls at most until it is left alone.
const WAIT_MAX: Duration = Duration::from_secs(20);

#[test]
fn a_progress_thread_leaves_the_port_to_a_poller_until_it_arms_again() {
    domain::on_both_paths("a_progress_thread_leaves_the_port_to_a_poller_until_it_arms_again", || {
        let device = Device::open(&DeviceConfig::from_env()).expect("lo exists");
        let context = device.context().expect("an open device");
        let channel = context.create_comp_channel().expect("a descriptor");
        let armed = context.create_cq(16, Some(&channel), 0).expect("small");
        let polled = context.create_cq(16, None, 0).expect("small");
        armed.req_notify(false);
        let due = || device.due();
        assert!(due().is_none_or(|due| due.has_sleeper), "no thread has polled since");

        let began = Instant::now();
        while !due().is_some_and(|due| due.is_watching && !due.has_sleeper) {
            assert!(polled.poll_one().is_none());
            assert!(began.elapsed() < WAIT_MAX, "the progress thread competes with the polls: {:?}", due());
        }

        armed.req_notify(false);
        while due().is_none_or(|due| due.is_watching) {
            assert!(began.elapsed() < 2 * WAIT_MAX, "nothing serves the port of a thread that may sleep");
            std::thread::yield_now();
        }
        assert!(due().is_none_or(|due| due.has_sleeper));
    });
}
