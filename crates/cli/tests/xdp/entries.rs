//! Programs in the entries of a DEVMAP or a CPUMAP.

use serde_json::Value;

use crate::host::*;

const SOURCE: &str = r#"
#include "xdp.h"

MAP(ports, DEVMAP, u32, u64, 4);
MAP(cpus, CPUMAP, u32, u64, 4);
MAP(seen, ARRAY, u32, u64, 3);

INLINE void count(u32 at)
{
	u64 *value = map_lookup(&seen, &at);
	if (value)
		__sync_fetch_and_add(value, 1);
}

SEC("xdp") int to_port(struct xdp_md *ctx) { count(2); return redirect_map(&ports, 0, 0); }
SEC("xdp") int to_cpu(struct xdp_md *ctx) { count(2); return redirect_map(&cpus, 0, 0); }
SEC("xdp/devmap") int leaving(struct xdp_md *ctx) { count(0); return XDP_DROP; }
SEC("xdp/cpumap") int arriving(struct xdp_md *ctx) { count(1); return XDP_DROP; }

LICENSE;
"#;

fn counted(at: usize) -> u64 {
    let entries: Value =
        serde_json::from_str(&good(&["map", "get", "veth0", "seen", "--zeros", "--json"])).unwrap();
    entries[at]["values"][0].as_u64().unwrap_or_else(|| panic!("{entries}"))
}

#[test]
fn a_program_in_an_entry_runs_and_shares_the_maps_of_the_program_on_the_interface() {
    if !enter() {
        return;
    }
    let Some(file) = object("entries", SOURCE) else { return };
    for (at, program, map, entry) in [
        (0, "to_port", "ports", format!("veth0,{file}:leaving")),
        // The queue of the CPU holds all packets that are sent.
        (1, "to_cpu", "cpus", format!("256,{file}")),
    ] {
        good(&["attach", "veth0", &file, "--prog", program, "--replace", "--mode", "native"]);
        // A veth takes redirected packets only while its peer has a program.
        good(&["attach", "veth1", "--recipe", "pass", "--replace", "--mode", "native"]);
        good(&["map", "set", "veth0", map, "0", &entry]);
        let shown = good(&["map", "get", "veth0", map, "0"]);
        assert!(shown.contains(", program "), "{shown}");
        good(&["send", "veth1", "--count", "100", "--socket"]);
        eventually("counted", || counted(at) >= 100);
    }
}

#[test]
fn an_entry_with_a_program_that_does_not_fit_is_refused_with_the_reason() {
    if !enter() {
        return;
    }
    let Some(file) = object("entries-refused", SOURCE) else { return };
    // The user decides what a program is for.
    good(&["attach", "veth0", &file, "--prog", "leaving"]);
    good(&["detach", "veth0"]);
    good(&["attach", "veth0", &file, "--prog", "to_port"]);
    good(&["map", "set", "veth0", "ports", "0", &format!("veth0,{file}:arriving")]);
    let set = |value: String, says: &[&str]| refused(&["map", "set", "veth0", "ports", "0", &value], 1, says);
    set(format!("veth0,{file}:nonesuch"), &["no such program", "leaving (xdp/devmap)"]);
    set("veth0,/no/such.o".to_owned(), &["/no/such.o"]);
    set(format!("nonesuch,{file}:leaving"), &["nonesuch"]);
}
