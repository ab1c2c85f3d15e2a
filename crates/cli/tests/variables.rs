//! Environment variables with invalid values, with and without an option for them.

use std::process::Command;

/// Without this check the program would only find no device.
#[test]
fn an_invalid_variable_is_refused_before_the_program_starts() {
    for (name, value, said) in [
        ("ROXIE_USERS", "bob", "ROXIE_USERS=bob is not a list of user ids"),
        ("ROXIE_DOMAIN", "x y", "is not NAME or NAME:PORT"),
        ("ROXIE_ECN", "1", "ROXIE_ECN=1 is none of off, on, NAME=VALUE[,NAME=VALUE...]"),
        ("ROXIE_NAME", "a/b", "'a/b' cannot name a device (ROXIE_NAME='a/b')"),
        ("ROXIE_NETDEV", "lo,,lo", "ROXIE_NETDEV='lo,,lo' has an empty part"),
        ("ROXIE_DEVICES", "33", "ROXIE_DEVICES='33' is not a number of devices"),
    ] {
        for words in [["run", "--", "/bin/true"].as_slice(), &["devinfo"], &["env"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
            let output = command.args(words).env(name, value).output().expect("roxie runs");
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
            assert!(told.contains(said), "{words:?}: {told}");
        }
    }
}
