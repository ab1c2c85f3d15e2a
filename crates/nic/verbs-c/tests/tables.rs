//! Compares strings and rates with rdma-core's own libraries: one C program runs with both.

use std::process::Command;

mod c_program;
mod libraries;

#[test]
fn strings_and_rates_are_those_of_rdma_core() {
    let Some(program) = c_program::compile("tables") else { return };
    let Some(ours) = c_program::run_with_ours(&program) else { return };
    assert!(ours.status.success(), "{ours:?}");
    let theirs = Command::new(&program).env_remove("LD_LIBRARY_PATH").output().expect("running the program");
    assert!(theirs.status.success(), "{theirs:?}");
    let (ours, theirs) = (String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&theirs.stdout));
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}
