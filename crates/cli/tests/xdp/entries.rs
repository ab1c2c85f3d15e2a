//! Programs in the entries of a DEVMAP, a CPUMAP or a program array; which map a name means.

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

#[test]
fn the_maps_of_a_program_in_an_entry_are_listed_and_set() {
    if !enter() {
        return;
    }
    let other = r#"
        #include "xdp.h"
        MAP(limits, ARRAY, u32, u64, 1);
        SEC("other") int limited(struct xdp_md *ctx) { u32 k = 0; return map_lookup(&limits, &k) ? 2 : 1; }
        LICENSE;
    "#;
    let Some(file) = object("entries-maps", SOURCE) else { return };
    let Some(other) = object("entries-other", other) else { return };
    good(&["attach", "veth0", &file, "--prog", "to_port"]);
    good(&["map", "set", "veth0", "ports", "1", &format!("veth1,{other}:limited")]);
    let list = good(&["map", "list", "veth0"]);
    let line = list.lines().find(|line| line.contains("limits")).unwrap_or_else(|| panic!("{list}"));
    assert!(line.contains("entry") && line.contains("limited"), "{line}");
    good(&["map", "set", "veth0", "limits", "0", "7"]);
    let id = line.split_whitespace().next().unwrap();
    assert_eq!(good(&["map", "get", "veth0", id, "0"]).split_whitespace().last(), Some("7"));
}

#[test]
fn a_program_is_set_into_a_program_array_that_a_process_keeps() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        static long (*tail_call)(void *ctx, void *map, u32 index) = (void *)12;
        MAP(jumps, 3, u32, u32, 4);
        MAP(seen, ARRAY, u32, u64, 1);
        SEC("xdp") int first(struct xdp_md *ctx) { tail_call(ctx, &jumps, 2); return XDP_PASS; }
        SEC("later") int second(struct xdp_md *ctx)
        {
            u32 key = 0;
            u64 *value = map_lookup(&seen, &key);
            if (value)
                __sync_fetch_and_add(value, 1);
            return XDP_DROP;
        }
        LICENSE;
    "#;
    let Some(file) = object("jumps", source) else { return };
    let entry = format!("{file}:second");
    good(&["attach", "veth0", &file]);
    // Nothing keeps the array.
    refused(&["map", "set", "veth0", "jumps", "2", &entry], 1, &["the kernel emptied jumps", "--foreground"]);
    good(&["detach", "veth0"]);
    let mut running = command(&["attach", "veth0", &file, "--foreground"]).spawn().unwrap();
    eventually("attached", || !programs("veth0").is_empty());
    good(&["map", "set", "veth0", "jumps", "2", &entry]);
    good(&["send", "veth1", "--count", "5"]);
    eventually("counted", || good(&["map", "get", "veth0", "seen", "0"]).trim_end().ends_with(" 5"));
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn maps_are_found_by_their_full_names_and_ids() {
    if !enter() {
        return;
    }
    // The kernel keeps 15 bytes of a name.
    let source = r#"
        #include "xdp.h"
        struct flow { __be32 source; u8 to[16]; u16 port; };
        MAP(packets_by_protocol_tcp, ARRAY, u32, u64, 2);
        MAP(packets_by_protocol_udp, ARRAY, u32, u64, 2);
        MAP(packets_by_flow, HASH, struct flow, u64, 8);
        struct { UINT(type, LPM_TRIE); UINT(key_size, 8); UINT(value_size, 4); UINT(max_entries, 8);
                 UINT(map_flags, NO_PREALLOC); } prefixes SEC(".maps");
        SEC("xdp") int names(struct xdp_md *ctx)
        {
            u32 k = 0; struct flow flow = {}; u64 lpm = 0;
            u64 *udp, *tcp;
            udp = map_lookup(&packets_by_protocol_udp, &k), tcp = map_lookup(&packets_by_protocol_tcp, &k);
            if (tcp) *tcp += 1;
            if (udp) *udp += 10;
            return map_lookup(&packets_by_flow, &flow) || map_lookup(&prefixes, &lpm) ? XDP_DROP : XDP_PASS;
        }
        LICENSE;
    "#
    .replace("struct flow {", "typedef u32 __be32;\nstruct flow {");
    let Some(file) = object("names", &source) else { return };
    good(&["attach", "veth0", &file]);
    let list = good(&["map", "list", "veth0"]);
    assert!(list.contains("packets_by_protocol_tcp") && list.contains("packets_by_protocol_udp"), "{list}");
    let cut = ["map", "get", "veth0", "packets_by_prot"];
    refused(
        &cut,
        2,
        &["several maps", "packets_by_protocol_tcp", "packets_by_protocol_udp", "by its number"],
    );
    good(&["send", "veth1", "--count", "1"]);
    let value =
        |map: &str| good(&["map", "get", "veth0", map, "0"]).split_whitespace().last().unwrap().to_owned();
    eventually("counted", || value("packets_by_protocol_tcp") == "1");
    assert_eq!(value("packets_by_protocol_udp"), "10");
    good(&["map", "set", "veth0", "packets_by_protocol_udp", "0", "5"]);
    assert_eq!(
        (value("packets_by_protocol_tcp"), value("packets_by_protocol_udp")),
        ("1".into(), "5".into())
    );

    // Addresses within keys.
    good(&["map", "set", "veth0", "packets_by_flow", "10.0.0.1+fd00::1+80", "3"]);
    let flows = good(&["map", "get", "veth0", "packets_by_flow"]);
    assert!(flows.contains("source=10.0.0.1") && flows.contains("port=80"), "{flows}");
    refused(&["map", "get", "veth0", "packets_by_flow", "fd00::1+10.0.0.1+80"], 2, &["does not make"]);

    // The longest prefix, as a program finds it.
    good(&["map", "set", "veth0", "prefixes", "10.0.0.0/8", "1"]);
    good(&["map", "set", "veth0", "prefixes", "10.1.0.0/17", "2"]);
    for (address, found) in [("10.1.2.3", "10.1.0.0/17"), ("10.1.128.3", "10.0.0.0/8")] {
        let said = good(&["map", "get", "veth0", "prefixes", address]);
        assert!(said.starts_with(found) && said.lines().count() == 1, "{address}: {said}");
    }
    refused(&["map", "get", "veth0", "prefixes", "11.0.0.1"], 1, &["no entry 11.0.0.1"]);
}
