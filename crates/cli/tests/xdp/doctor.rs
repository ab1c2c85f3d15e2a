//! What `roxie doctor` and captures say about interfaces, their programs and their hints.

use std::process::Command;

use nix::mount::{MsFlags, mount};

use crate::host::*;

/// Output of `roxie` with these words. The exit code depends on the rest of the machine.
fn said(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_roxie")).args(words).output().unwrap();
    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
}

#[test]
fn doctor_shows_what_the_program_on_an_interface_decided() {
    if !enter() {
        return;
    }
    good(&["attach", "veth0", "--recipe", "drop:only=roce,port=9"]);
    assert!(!said(&["doctor"]).contains("its program counts"));
    good(&["send", "veth1", "--count", "50", "--socket"]);
    eventually("counted", || said(&["doctor"]).contains("veth0: its program counts XDP_DROP.packets 50"));
}

#[test]
fn hints_that_cannot_be_used_are_said_with_the_error() {
    if !enter() {
        return;
    }
    if !said(&["doctor"])
        .contains("veth0: generic, native mode; AF_XDP in copy mode, multi-buffer packets; receive hints")
    {
        println!("skipped: needs Linux 6.8");
        return;
    }
    // The kernel's types name the functions; no other process sees this.
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("none"), "/sys/kernel/btf", Some("tmpfs"), MsFlags::empty(), none).unwrap();
    let doctor = said(&["doctor"]);
    let says = "the receive hints cannot be used: /sys/kernel/btf/vmlinux: No such file or directory";
    assert!(doctor.lines().any(|line| line.contains("veth0: ") && line.contains(says)), "{doctor}");
    let record = ["capture", "record", "-i", "veth0", "--nic-time", "--seconds", "0.1", "-o", "/dev/null"];
    let record = said(&record);
    assert!(
        record.contains("veth0: using the receive hints of its driver: /sys/kernel/btf/vmlinux"),
        "{record}"
    );
}
