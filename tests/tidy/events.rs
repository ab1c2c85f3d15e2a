//! Every asynchronous event of verbs.h has a test that makes it happen, or a line in the deviations.

use std::fs;

use crate::root;

const C: &str = "crates/nic/verbs-c/tests/events.c";
const INTERFACE: &str = "tests/programs/follow.rs";

/// Which file tests an event, and what it says of it.
const TESTED: [(&str, &str, &str); 12] = [
    ("CQ_ERR", C, "IBV_EVENT_CQ_ERR"),
    ("QP_FATAL", C, "IBV_EVENT_QP_FATAL"),
    ("QP_REQ_ERR", C, "IBV_EVENT_QP_REQ_ERR"),
    ("QP_ACCESS_ERR", C, "IBV_EVENT_QP_ACCESS_ERR"),
    ("COMM_EST", C, "IBV_EVENT_COMM_EST"),
    ("SQ_DRAINED", C, "IBV_EVENT_SQ_DRAINED"),
    ("QP_LAST_WQE_REACHED", C, "IBV_EVENT_QP_LAST_WQE_REACHED"),
    ("SRQ_LIMIT_REACHED", "crates/nic/verbs-c/tests/verbs.c", "IBV_EVENT_SRQ_LIMIT_REACHED"),
    ("DEVICE_FATAL", INTERFACE, "local catastrophic error"),
    ("PORT_ACTIVE", INTERFACE, "port active"),
    ("PORT_ERR", INTERFACE, "port error"),
    ("GID_CHANGE", INTERFACE, "GID table change"),
];

/// The row of the deviations about the events that are never raised.
const NEVER: &str = "- **ibv_get_async_event(3): never raised.**";

pub(crate) fn violations() -> Vec<String> {
    let Ok(header) = fs::read_to_string("/usr/include/infiniband/verbs.h") else {
        println!("skipped: needs libibverbs-dev");
        return Vec::new();
    };
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap_or_default();
    let deviations = read("docs/deviations.md");
    let never = deviations.split_once(NEVER).map_or("", |(_, row)| row.split("\n- ").next().unwrap_or(row));
    let names = header.split_once("enum ibv_event_type {").map_or("", |(_, body)| body);
    let names = names.split('}').next().unwrap_or("").split(',').map(str::trim);
    let names: Vec<_> = names.filter_map(|name| name.strip_prefix("IBV_EVENT_")).collect();
    let mut violations = Vec::new();
    if names.len() < TESTED.len() {
        violations.push(format!("verbs.h has {} events", names.len()));
    }
    for name in names {
        let row = TESTED.iter().find(|(event, ..)| *event == name);
        let is_tested = row.is_some_and(|(_, file, says)| read(file).contains(says));
        let is_named = never.split([' ', ',', '.', ':', ';', '\n']).any(|word| word == name);
        if is_tested == is_named {
            violations.push(format!("{name}: tested {is_tested}, named in the deviations {is_named}"));
        }
    }
    violations
}
