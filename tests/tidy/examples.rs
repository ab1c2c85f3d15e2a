//! Public crates show how they are used: an example in their documentation that `cargo test --doc` runs.

use std::path::Path;

use crate::tree::File;

/// Where there must be an example.
const SHOWN: [&str; 7] = [
    "crates/nic/wire/src/",
    "crates/xdp/bpf/src/",
    "crates/nic/transport/src/",
    "crates/tools/capture/src/",
    "crates/nic/device/src/verbs/",
    "crates/nic/device/src/cm/",
    "crates/nic/net/src/",
];
/// What `rustdoc` may be told about an example that it runs.
const RUN: [&str; 3] = ["rust", "should_panic", "edition2024"];

/// The places that have no example.
pub(crate) fn missing(files: &[File], root: &Path) -> Vec<String> {
    let shows =
        |place: &str| files.iter().any(|file| file.name.starts_with(place) && has_example(&file.text));
    let missing = SHOWN.iter().filter(|place| !shows(place));
    missing
        .map(|place| {
            let what =
                if root.join(place).is_dir() { "no doc example that is run" } else { "no such directory" };
            format!("{place}: {what}")
        })
        .collect()
}

fn has_example(text: &str) -> bool {
    let comments = text.lines().map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
    });
    let mut inside = false;
    for fence in comments.map(|comment| comment.and_then(|text| text.strip_prefix("```"))) {
        let Some(tags) = fence else { continue };
        inside = !inside;
        if inside && tags.split(',').all(|tag| tag.is_empty() || RUN.contains(&tag.trim())) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_example_that_is_run_counts() {
        assert!(has_example("/// ```\n/// f();\n/// ```\n"));
        assert!(!has_example("/// ```text\n/// f();\n/// ```\n"));
        assert!(!has_example("/// ```no_run\n/// f();\n/// ```\n"));
        assert!(!has_example("// ```\n// f();\n// ```\n"));
    }
}
