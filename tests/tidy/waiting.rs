//! Where the NIC sleeps: in one function, which a thread that holds the engine's lock must not call.

use crate::tree::File;

/// The function's file.
const PAUSE: &str = "crates/nic/sys/src/waiting.rs";

/// Each other place in the production code of the NIC that sleeps.
pub(crate) fn other_sleeps(files: &[File]) -> Vec<String> {
    let is_source = |file: &&File| {
        file.is_rust()
            && ["crates/nic/", "crates/xdp/hook/"].iter().any(|house| file.name.starts_with(house))
            && file.name.contains("/src/")
            && !file.name.ends_with("tests.rs")
            && !file.name.contains("/tests/")
            && file.name != PAUSE
    };
    let mut found = Vec::new();
    for file in files.iter().filter(is_source) {
        let production = file.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for (index, line) in production.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if ["thread::sleep(", "nanosleep(", "libc::usleep("].iter().any(|call| code.contains(call)) {
                found.push(format!("{}:{}: {}: use sys::pause", file.name, index + 1, line.trim()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prose::Language;

    #[test]
    fn a_sleep_is_found_outside_of_tests() {
        let found = |text: &str| {
            let (name, text) = ("crates/nic/device/src/cq.rs".to_owned(), text.to_owned());
            other_sleeps(&[File { name, text, language: Language::Rust }]).len()
        };
        assert_eq!(found("std::thread::sleep(PAUSE);"), 1);
        assert_eq!(found("sys::pause(PAUSE);\n#[cfg(test)]\nmod tests {\n thread::sleep(PAUSE);\n}"), 0);
    }
}
