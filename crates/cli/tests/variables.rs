//! Variables that stand for arguments of `roxie run`, or for nothing that has one.

use std::process::Command;

/// The program would only say that there is no device, if anything.
#[test]
fn what_makes_no_sense_is_refused_before_the_program_starts() {
    for (name, value, said) in [
        ("ROXIE_USERS", "bob", "ROXIE_USERS=bob is not a list of user ids"),
        ("ROXIE_DOMAIN", "x y", "use NAME or NAME:PORT"),
        ("ROXIE_ECN", "1", "ROXIE_ECN=1 is none of off, on"),
        ("ROXIE_NAME", "a/b", "'a/b' cannot name a device"),
    ] {
        for words in [["run", "--", "/bin/true"].as_slice(), &["devinfo"], &["env"]] {
            if words == ["devinfo"] && name == "ROXIE_ECN" {
                continue; // It sends nothing.
            }
            let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
            let output = command.args(words).env(name, value).output().expect("roxie runs");
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
            assert!(told.contains(said), "{words:?}: {told}");
        }
    }
}
