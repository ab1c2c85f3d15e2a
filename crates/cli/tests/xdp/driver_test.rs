//! `roxie xdp test` and `send` with few packets: they account for each packet; rates are not checked.

use std::fs;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::host::*;

fn tests(words: &[&str]) -> (Option<i32>, Vec<Value>) {
    let ended = roxie(words);
    let report: Value = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    assert_eq!(ended.code == Some(0), report["failed"] == 0, "{ended:?}");
    // Losses are no failure of the driver, and never ok.
    assert_eq!(report["ok"] == true, report["failed"] == 0 && report["lossy"] == 0, "{ended:?}");
    (ended.code, report["tests"].as_array().unwrap().clone())
}

fn named<'a>(tests: &'a [Value], name: &str) -> &'a Value {
    tests.iter().find(|test| test["test"] == name).unwrap_or_else(|| panic!("no {name} in {tests:?}"))
}

fn account(test: &Value) -> u64 {
    let drops = test["dropped"].as_object().unwrap().values().map(|count| count.as_u64().unwrap());
    test["out"].as_u64().unwrap() + drops.sum::<u64>()
}

#[test]
fn on_its_own_veth_pairs_the_test_accounts_for_every_packet_and_leaves_nothing() {
    if !enter() {
        return;
    }
    let before = fs::read_to_string("/proc/thread-self/net/dev").unwrap().lines().count();
    for mode in ["native", "generic"] {
        let (code, tests) = tests(&["test", "--json", "--count", "2000", "--mode", mode]);
        assert_eq!((code, tests.len()), (Some(0), 12), "{mode}: {tests:#?}");
        for test in &tests {
            let short = !test["test"].as_str().unwrap().starts_with("multi");
            let sent = if short { 2000 } else { 200 };
            assert!(
                test["result"] == "ok" && test["sent"] == sent && account(test) == sent,
                "{mode}: {test}"
            );
        }
        assert!(named(&tests, "XDP_TX")["out"].as_u64() > Some(0));
    }
    assert_eq!(fs::read_to_string("/proc/thread-self/net/dev").unwrap().lines().count(), before);
}

#[test]
fn on_given_interfaces_the_test_leaves_other_traffic_and_programs_alone() {
    if !enter() {
        return;
    }
    ip(&["address", "add", "10.9.0.1/24", "dev", "veth0"]);
    let (code, all) = tests(&["test", "--netdev", "veth0", "--peer", "veth1", "--json", "--count", "1000"]);
    assert_eq!(code, Some(0), "{all:#?}");
    assert_eq!(named(&all, "XDP_PASS")["sent"], 1000);
    assert_eq!(named(&all, "multi-buffer XDP_TX")["why"], "the MTU is below 8000");
    assert!(programs("veth0").is_empty() && programs("veth1").is_empty());

    let (code, all) = tests(&["test", "--netdev", "veth0", "--json", "--count", "1000"]);
    assert_eq!((code, &named(&all, "XDP_TX")["why"]), (Some(0), &"no interface sends".into()), "{all:#?}");
    assert_eq!(named(&all, "AF_XDP tx only")["sent"], 1000);

    good(&["attach", "veth0", "--recipe", "pass"]);
    refused(
        &["test", "--netdev", "veth0", "--peer", "veth1", "--count", "10"],
        1,
        &["XDP program already attached"],
    );
    assert_eq!(programs("veth0")[0]["name"], "roxie_pass");
    refused(
        &["test", "--only", "flying", "--count", "1"],
        2,
        &["no such test", "XDP_PASS", "multi-buffer AF_XDP"],
    );
    refused(&["test", "--netdev", "nonesuch"], 1, &["no network interface called 'nonesuch'"]);
    refused(&["test", "--netdev", "lo"], 1, &["lo: is not an Ethernet interface that is up"]);
    let ended = roxie_as_nobody(&["test"]);
    assert!(ended.code == Some(1) && ended.err.contains("CAP_SYS_ADMIN"), "{ended:?}");
}

#[test]
fn a_killed_test_leaves_nothing_on_the_interfaces() {
    if !enter() {
        return;
    }
    for signal in [Signal::SIGKILL, Signal::SIGINT] {
        let words = ["test", "--netdev", "veth0", "--peer", "veth1", "--count", "1000000000"];
        let mut testing = command(&words).stdout(Stdio::null()).spawn().unwrap();
        let is_on = || !programs("veth0").is_empty() || !programs("veth1").is_empty();
        eventually("begun", is_on);
        kill(Pid::from_raw(testing.id() as i32), signal).unwrap();
        assert!(!testing.wait().unwrap().success());
        eventually("gone", || !is_on());
    }
}

#[test]
fn every_sent_packet_arrives() {
    if !enter() {
        return;
    }
    good(&["attach", "veth0", "--recipe", "drop:only=roce,port=9"]);
    for words in
        [&["send", "veth1", "--count", "1000"][..], &["send", "veth1", "--count", "1000", "--socket"]]
    {
        let said = good(words);
        assert!(said.starts_with("1000 packets in "), "{said}");
    }
    let stats: Value = serde_json::from_str(&good(&["stats", "veth0", "--json"])).unwrap();
    assert_eq!(stats["verdicts"]["XDP_DROP.packets"], 2000);
    refused(&["send", "veth1", "--to", "here"], 2, &["'here' is not an Ethernet address"]);
}
