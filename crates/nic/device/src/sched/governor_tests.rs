//! The governor's states and the yields of application threads, by rounds of a program.

use super::*;

const MS: u64 = 1_000_000;

fn tuning() -> Tuning {
    Tuning::default()
}

fn governor() -> Governor {
    Governor::new(tuning())
}

/// `bursts`: how often an application has done [`Tuning::poller_work`].
fn is_inline(governor: &mut Governor, bursts: u64, now: u64) -> bool {
    governor.next_state(bursts * tuning().poller_work, false, now, Usage::default) == State::Inline
}

/// Runs one round of a program that polls until its request is acknowledged and then spins on memory. Returns
/// whether the progress thread left the port to the program.
fn poll_then_spin(governor: &mut Governor, polls: &mut u64, now: u64) -> bool {
    *polls += 8;
    let was_inline = is_inline(governor, *polls, now);
    *polls += 8;
    let again = was_inline && is_inline(governor, *polls, now);
    assert!(!again || !is_inline(governor, *polls, now), "no thread polled meanwhile");
    governor.served(1, tuning().ran_ns, now);
    was_inline
}

#[test]
fn unread_packets_in_several_rounds_make_the_progress_thread_take_over() {
    let (mut governor, mut polls, mut now) = (governor(), 0, 0);
    for takeover_ns in [100, 200, 400, 800, 1600, 1600].map(|ms| ms * MS) {
        for _ in 0..tuning().takeover_rounds {
            assert!(poll_then_spin(&mut governor, &mut polls, now), "the polling thread gets a chance");
        }
        assert!(!poll_then_spin(&mut governor, &mut polls, now));
        now += takeover_ns;
        assert!(!poll_then_spin(&mut governor, &mut polls, now - 1));
    }
    for _ in 0..4 {
        polls += 1;
        assert!(is_inline(&mut governor, polls, now), "a thread that polls steadily is relied on again");
    }
    for _ in 0..tuning().takeover_rounds {
        assert!(poll_then_spin(&mut governor, &mut polls, now));
    }
    assert!(!poll_then_spin(&mut governor, &mut polls, now + tuning().takeover_ns - 1));
    assert!(
        poll_then_spin(&mut governor, &mut polls, now + tuning().takeover_ns),
        "the takeovers start anew"
    );
}

#[test]
fn a_thread_that_polls_once_in_a_millisecond_leaves_the_port_to_the_progress_thread() {
    let mut governor = governor();
    for check in 0..1000 {
        let (now, polls) = (check * 10_000, check / 100 * 6);
        assert_eq!(
            governor.next_state(polls, false, now, Usage::default),
            State::Background,
            "check {check}"
        );
    }
    // It begins to poll every microsecond, and does so no longer after 5 ms.
    let (mut now, mut inline_after) = (10 * MS, None);
    while now < 15 * MS {
        let polls = (now - 10 * MS) / 1000;
        let state = governor.next_state(60 + polls, false, now, Usage::default);
        assert!(inline_after.is_none() || state == State::Inline);
        inline_after = inline_after.or((state == State::Inline).then_some(polls));
        now += if state == State::Inline { governor.watch_ns() } else { 5_000 };
    }
    assert_eq!(inline_after, Some(10), "with the six before");
    let polls = 60 + 5_000;
    assert_eq!(
        governor.next_state(polls, false, now, Usage::default),
        State::Inline,
        "it polled since the last check"
    );
    assert_eq!(
        governor.next_state(polls + 1, false, now + governor.watch_ns(), Usage::default),
        State::Background
    );
}

/// Each 3 ms a thread has the CPU for a moment, and polls three times. `leaves` says how it loses the CPU.
/// Returns in how many of 333 such periods the port was left to it.
fn inline_periods(leaves: impl Fn(u64) -> Usage) -> usize {
    let mut governor = governor();
    let is_inline = |period: &u64| {
        let mut checks = (0..12).map(|check| period * 3 * MS + check * MS / 4);
        checks.any(|now| governor.next_state(period * 3, false, now, || leaves(*period)) == State::Inline)
    };
    (0..333).filter(is_inline).count()
}

#[test]
fn threads_that_wait_for_the_cpu_keep_the_engine_and_threads_that_sleep_do_not() {
    let waits = |period| Usage { cpu_ns: period * 20_000, voluntary: 0, involuntary: period };
    assert_eq!(inline_periods(waits), 333 - 6, "once it has made 16 polls");
    let sleeps = |period| Usage { voluntary: period, involuntary: 0, ..waits(period) };
    assert_eq!(inline_periods(sleeps), 0);
    // It computes for 2 ms after each three polls.
    let computes = |period| Usage { cpu_ns: period * 2 * MS, ..waits(period) };
    assert_eq!(inline_periods(computes), 0);
}

#[test]
fn short_sleeps_double_until_the_next_packet() {
    let mut governor = governor();
    let sleeps = |governor: &mut Governor| [(); 6].map(|()| governor.sleep_until(0) / 250_000);
    for _ in 0..2 {
        governor.served(1, 0, 0);
        assert_eq!(sleeps(&mut governor), [1, 2, 4, 8, 16, 16]);
    }
    assert_eq!(governor.sleep_until(tuning().brief_for_ns), tuning().brief_for_ns + tuning().sleep_max_ns);
}

/// A thread polls every `gap_ns` for a second and computes meanwhile, and a packet waits at each check.
/// Returns how often the progress thread left the port to it, and how often it took the port back.
fn changes(gap_ns: u64) -> (usize, usize) {
    let (mut governor, mut now, mut begun, mut ended, mut was_inline) = (governor(), 0, 0, 0, false);
    while now < 1_000 * MS {
        // A poll has one round.
        let is_inline = governor.next_state(now / gap_ns * 2, false, now, Usage::default) == State::Inline;
        begun += usize::from(is_inline && !was_inline);
        ended += usize::from(!is_inline && was_inline);
        assert_eq!(governor.takeovers, 0, "no check ended `Inline`");
        was_inline = is_inline;
        now += if is_inline { governor.watch_ns() } else { 50_000 };
        if !is_inline {
            governor.served(1, tuning().ran_ns, now);
        }
    }
    (begun, ended)
}

#[test]
fn a_thread_at_the_limit_does_not_change_the_state_at_each_check() {
    let table = [(5, 1), (20, 1), (60, 1), (90, 1), (120, 0), (150, 0), (500, 0), (2000, 0)];
    for (gap_us, begun) in table {
        assert_eq!(changes(gap_us * 1000), (begun, 0), "{gap_us} us");
    }
}

#[test]
fn a_steady_poller_keeps_the_engine_although_it_pauses_now_and_then() {
    let mut governor = governor();
    for round in 0..100 {
        assert!(is_inline(&mut governor, round + 1, 0));
        if round % 4 == 0 {
            assert!(!is_inline(&mut governor, round + 1, 0));
            governor.served(1, tuning().ran_ns, 0);
        }
    }
}

#[test]
fn a_steady_poller_is_checked_less_often_until_it_stops() {
    let mut governor = governor();
    let mut polled_for = 0;
    for round in 0..300 {
        assert!(is_inline(&mut governor, round + 1, 0));
        let watch = governor.watch_ns();
        assert!((250_000..=4 * MS).contains(&watch) && (round < 16 || watch <= polled_for / 8));
        polled_for += watch;
    }
    assert_eq!(governor.watch_ns(), 4 * MS);
    assert!(!is_inline(&mut governor, 300, 0));
    governor.served(0, tuning().ran_ns, 0);
    assert_eq!(governor.watch_ns(), 250_000);
}

#[test]
fn a_polling_thread_that_waits_for_the_cpu_keeps_the_engine() {
    let mut governor = governor();
    for round in 0..100 {
        assert!(is_inline(&mut governor, round + 1, 0));
        assert!(!is_inline(&mut governor, round + 1, 0));
        governor.served(1, tuning().ran_ns - 1, 0);
    }
}

#[test]
fn a_poller_that_stops_while_nothing_arrives_keeps_the_engine() {
    let mut governor = governor();
    for round in 0..10 {
        assert!(is_inline(&mut governor, round + 1, 0));
        assert!(!is_inline(&mut governor, round + 1, 0));
        governor.served(0, tuning().ran_ns, 0);
        governor.served(1, tuning().ran_ns, 0);
    }
}

#[test]
fn an_armed_completion_queue_keeps_the_progress_thread_on_the_port() {
    let mut governor = governor();
    for bursts in 1..10 {
        assert_eq!(
            governor.next_state(bursts * tuning().poller_work, true, 0, Usage::default),
            State::Background
        );
    }
}

/// Simulates traffic and a yield of `away_ns` every `interval_ns`. Returns for how many of these the thread
/// continues to spin.
fn spins(interval_ns: u64, away_ns: u64) -> usize {
    let mut governor = governor();
    let is_spinning = |round| {
        let at = round * interval_ns;
        governor.served(1, 0, at);
        governor.yielded(at, at + away_ns);
        governor.served(1, 0, at + away_ns);
        governor.spins(at + away_ns)
    };
    (0..100).map(is_spinning).take_while(|spins| *spins).count()
}

#[test]
fn interrupts_do_not_make_the_cpu_crowded() {
    let long = tuning().crowded_yield_ns;
    assert_eq!(spins(10 * MS, 140_000), 100);
    assert_eq!(spins(long, long), 100, "each yield returns soon");
}

#[test]
fn a_spinning_thread_makes_the_cpu_crowded_at_once_and_frequent_work_after_a_while() {
    assert_eq!(spins(10 * MS, 3 * MS), 0);
    assert_eq!(spins(MS, 140_000), 7);
}

#[test]
fn spinning_is_tried_again_after_a_while_on_a_crowded_cpu() {
    let mut governor = governor();
    governor.yielded(0, 3 * MS);
    let crowded_ns = tuning().crowded_ns;
    let table = [(crowded_ns - 1, State::Crowded, false), (crowded_ns, State::Background, true)];
    for (after_ns, state, spins) in table {
        let now = 3 * MS + after_ns;
        assert_eq!(governor.next_state(0, true, now, Usage::default), state);
        governor.served(1, 0, now);
        assert_eq!(governor.spins(now), spins);
    }
}

/// Polls without packets until the thread yields; returns the number of polls.
fn empty_polls(inline: &InlineYield) -> u32 {
    let polls = (1..=tuning().yield_polls_max).find(|_| inline.polled(false, &tuning()));
    polls.expect("a limit is reached")
}

#[test]
fn packets_and_yields_reset_the_count_of_empty_polls() {
    let inline = InlineYield::new(&tuning());
    for _ in 0..tuning().yield_polls - 1 {
        assert!(!inline.polled(false, &tuning()));
    }
    assert!(!inline.polled(true, &tuning()));
    assert_eq!(empty_polls(&inline), tuning().yield_polls);
    assert_eq!(empty_polls(&inline), tuning().yield_polls);
}

#[test]
fn a_peer_that_responds_on_the_same_cpu_gets_the_cpu_earlier_each_time() {
    let inline = InlineYield::new(&tuning());
    for _ in 0..10 {
        empty_polls(&inline);
        inline.yielded(20_000, &tuning());
        assert!(!inline.polled(true, &tuning()));
    }
    assert_eq!(empty_polls(&inline), tuning().yield_polls_min);
    // The peer has a CPU of its own now.
    for _ in 0..10 {
        inline.yielded(tuning().free_yield_ns - 1, &tuning());
    }
    assert_eq!(empty_polls(&inline), tuning().yield_polls);
}

#[test]
fn a_cpu_bound_thread_gets_the_cpu_less_and_less_often() {
    let inline = InlineYield::new(&tuning());
    let slice_ns = tuning().cpu_bound_yield_ns;
    inline.yielded(slice_ns, &tuning());
    assert_eq!(empty_polls(&inline), 2 * tuning().yield_polls);
    for _ in 0..20 {
        inline.yielded(slice_ns, &tuning());
    }
    assert_eq!(empty_polls(&inline), tuning().yield_polls_max);
    inline.yielded(tuning().free_yield_ns - 1, &tuning());
    assert_eq!(
        empty_polls(&inline),
        tuning().yield_polls_max,
        "a CPU that is free for a moment proves nothing"
    );
}

#[test]
fn a_yield_after_which_nothing_arrived_changes_nothing() {
    let inline = InlineYield::new(&tuning());
    empty_polls(&inline);
    inline.yielded(20_000, &tuning());
    assert!(!inline.polled(false, &tuning()));
    assert!(!inline.polled(true, &tuning()));
    assert_eq!(empty_polls(&inline), tuning().yield_polls);
}
