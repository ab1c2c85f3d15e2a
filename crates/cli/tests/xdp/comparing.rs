//! `roxie xdp diff` and `bench`; values of maps by their types; records and printed lines of the kernel.

use std::process::Stdio;

use serde_json::Value;

use crate::host::*;

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/loss-write-ack-v4.pcap");

#[test]
fn a_program_that_is_the_same_in_kernel_and_machine_has_no_differences() {
    if !enter() {
        return;
    }
    for (name, source, verdict) in [
        ("diff-count", include_str!("../../../../xdp/count.c"), "XDP_PASS"),
        ("diff-roce", include_str!("../../../../xdp/roce.c"), "XDP_TX"),
        ("diff-packets", include_str!("../../../../xdp/packets.c"), "XDP_PASS"),
    ] {
        let Some(file) = object(name, source) else { return };
        let report: Value =
            serde_json::from_str(&good(&["diff", &file, "--capture", CAPTURE, "--json"])).unwrap();
        assert_eq!((&report["same"], &report["packets"]), (&true.into(), &34.into()), "{report}");
        assert_eq!(report["verdicts"][verdict], 34, "{report}");
    }
    let said = good(&["diff", "--recipe", "tx", "--capture", CAPTURE]);
    assert!(said.contains("34 packets") && said.contains("same verdicts, bytes and maps"), "{said}");
}

#[test]
fn differences_are_shown_and_the_exit_code_tells_them() {
    if !enter() {
        return;
    }
    // Random numbers differ; with 1 % each a run of 34 packets may agree, with half of them it does not.
    let ended = roxie(&["diff", "--recipe", "lose:ppm=500000", "--capture", CAPTURE]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.out.contains("verdict: kernel XDP_") && ended.out.contains("map counters, key"),
        "{ended:?}"
    );
    assert!(ended.err.contains("random numbers differ in each run"), "{ended:?}");
    // What cannot be compared is another exit code.
    refused(&["diff", "/nonesuch.o", "--capture", CAPTURE], 2, &["/nonesuch.o"]);
    refused(&["diff", "--recipe", "pass", "--capture", "/nonesuch.pcap"], 2, &["/nonesuch.pcap"]);
    refused(&["diff", "--recipe", "pass"], 2, &["--capture"]);
    assert_eq!(roxie_as_nobody(&["diff", "--recipe", "pass", "--capture", CAPTURE]).code, Some(2));
}

#[test]
fn a_large_array_is_compared_where_a_run_touches_it() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        static u32 (*random)(void) = (void *)7;
        MAP(large, ARRAY, u32, u64, 3000000);
        SEC("xdp") int same(struct xdp_md *ctx)
        {
            u32 k = 5000;
            u64 v = 7;
            map_update(&large, &k, &v, 0);
            return XDP_PASS;
        }
        SEC("xdp") int other(struct xdp_md *ctx)
        {
            u32 k = 5000;
            u64 *v = map_lookup(&large, &k);
            if (v)
                *v = random();
            return XDP_PASS;
        }
        LICENSE;
    "#;
    let Some(file) = object("large", source) else { return };
    let said = good(&["diff", &file, "--prog", "same", "--capture", CAPTURE]);
    assert!(said.contains("same verdicts, bytes and maps"), "{said}");
    let ended = roxie(&["diff", &file, "--prog", "other", "--capture", CAPTURE]);
    assert!(ended.out.contains("packet 1 differs\n  map large, key 88130000"), "{ended:?}");
}

#[test]
fn programs_with_receive_hints_are_compared_without_them() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        extern int bpf_xdp_metadata_rx_hash(const struct xdp_md *ctx, u32 *hash, u32 *kind) SEC(".ksyms");
        MAP(results, ARRAY, u32, long, 1);
        SEC("xdp") int hashed(struct xdp_md *ctx)
        {
            u32 hash = 0, kind = 0, key = 0;
            long result = bpf_xdp_metadata_rx_hash(ctx, &hash, &kind);
            map_update(&results, &key, &result, 0);
            return XDP_PASS;
        }
        LICENSE;
    "#;
    let Some(file) = object("hashed", source) else { return };
    let said = good(&["diff", &file, "--capture", CAPTURE]);
    assert!(said.contains("no packet has receive hints") && said.contains("same verdicts"), "{said}");
    let said = good(&["bench", &file, "--repeat", "1000"]);
    assert!(said.contains("no packet has receive hints"), "{said}");
    // lo has no driver that gives them.
    refused(&["attach", "lo", &file], 1, &["it asks for receive hints", "roxie doctor"]);
}

#[test]
fn loops_by_helpers_and_iterators_are_as_in_the_kernel() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        static long (*loop)(u32 rounds, void *body, void *ctx, u64 flags) = (void *)181;
        MAP(results, ARRAY, u32, long, 1);
        static int body(u32 round, void *ctx) { return round == 99; }
        SEC("xdp") int loops(struct xdp_md *ctx)
        {
            u32 key = 0;
            long result = loop(1 << 24, body, 0, 0) + loop(1 << 23, body, 0, 0);
            map_update(&results, &key, &result, 0);
            return XDP_PASS;
        }
        struct bpf_iter_num { u64 words; } __attribute__((aligned(8)));
        extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) SEC(".ksyms");
        extern int *bpf_iter_num_next(struct bpf_iter_num *it) SEC(".ksyms");
        extern void bpf_iter_num_destroy(struct bpf_iter_num *it) SEC(".ksyms");
        SEC("xdp") int iterates(struct xdp_md *ctx)
        {
            struct bpf_iter_num it;
            int *value;
            u32 key = 0;
            long result = 0;
            bpf_iter_num_new(&it, -2, 5);
            while ((value = bpf_iter_num_next(&it)))
                result = result * 10 + *value;
            bpf_iter_num_destroy(&it);
            // Too many.
            result = result * 100 + bpf_iter_num_new(&it, -5000000, 5000000);
            bpf_iter_num_destroy(&it);
            map_update(&results, &key, &result, 0);
            return XDP_PASS;
        }
        LICENSE;
    "#;
    let Some(file) = object("loops", source) else { return };
    for program in ["loops", "iterates"] {
        good(&["diff", &file, "--prog", program, "--capture", CAPTURE, "--count", "1"]);
    }
}

#[test]
fn both_places_are_measured() {
    if !enter() {
        return;
    }
    let Some(file) = object("bench-count", include_str!("../../../../xdp/count.c")) else { return };
    let report: Value = serde_json::from_str(&good(&["bench", &file, "--repeat", "1000", "--json"])).unwrap();
    let row = &report["programs"][0];
    assert_eq!((&row["program"], &row["verdict"]), (&"count".into(), &"XDP_PASS".into()));
    for column in ["kernel_ns", "machine_ns", "replayed_ns"] {
        assert!(row[column].as_f64() > Some(0.0), "{row}");
    }
    let said = good(&["bench", &file, "--repeat", "1000"]);
    assert!(said.starts_with("PROGRAM") && said.lines().all(|line| line.len() <= 80), "{said}");
}

#[test]
fn values_are_shown_and_set_by_the_types_of_the_program() {
    if !enter() {
        return;
    }
    let Some(file) = object("typed", include_str!("../../../../xdp/count.c")) else { return };
    good(&["attach", "veth0", &file]);
    good(&["send", "veth1", "--count", "5"]);
    eventually("counted", || good(&["map", "dump", "veth0", "counters"]).contains("packets=5 bytes=300"));
    let entries: Value =
        serde_json::from_str(&good(&["map", "get", "veth0", "counters", "1", "--json"])).unwrap();
    let value = entries[0]["values"].as_array().unwrap().iter().find(|value| value["packets"] == 5);
    assert!(value.is_some_and(|value| value["bytes"] == 300) && entries[0]["key"] == 1, "{entries}");
    good(&["map", "update", "veth0", "counters", "2", "7+9"]);
    assert!(good(&["map", "lookup", "veth0", "counters", "2"]).contains("packets=7 bytes=9"));
    refused(&["map", "set", "veth0", "counters", "2", "7+9+1"], 2, &["does not make 16 bytes"]);
    let zeros = good(&["map", "get", "veth0", "counters", "--zeros"]);
    assert_eq!(zeros.lines().count(), 4, "{zeros}");
}

#[test]
fn records_of_a_ring_and_of_perf_events_are_read() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        struct event { u32 number; char word[8]; };
        struct event *unused;
        static long (*perf_output)(void *, void *, u64, void *, u64) = (void *)25;
        struct { UINT(type, RINGBUF); UINT(max_entries, 4096); } ring SEC(".maps");
        struct { UINT(type, 4); UINT(key_size, 4); UINT(value_size, 4); } events SEC(".maps");
        SEC("xdp") int both(struct xdp_md *ctx)
        {
            struct event event = { 7, "seven" };
            ringbuf_output(&ring, &event, sizeof(event), 0);
            perf_output(ctx, &events, 0xffffffff, &event, sizeof(event));
            return XDP_DROP;
        }
        LICENSE;
    "#;
    let Some(file) = object("records", source) else { return };
    good(&["attach", "veth0", &file]);
    good(&["send", "veth1", "--count", "2"]);
    let typed = good(&["samples", "veth0", "--map", "ring", "--type", "event", "--count", "1"]);
    assert!(typed.contains("number=7 word=seven"), "{typed}");
    let plain = good(&["samples", "veth0", "--map", "ring", "--count", "1"]);
    assert!(plain.contains("12 bytes, hex:07000000736576656e000000"), "{plain}");
    refused(&["samples", "veth0", "--type", "nonesuch"], 1, &["no type 'nonesuch'"]);
    // Perf events have a ring only while there is a reader.
    let mut reading =
        command(&["samples", "veth0", "--map", "events", "--type", "event", "-c", "1", "--json"]);
    let mut reading = reading.stdout(Stdio::piped()).spawn().unwrap();
    eventually("an event", || {
        good(&["send", "veth1", "--count", "1"]);
        reading.try_wait().unwrap().is_some()
    });
    let read = reading.wait_with_output().unwrap();
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(read["record"]["word"], "seven", "{read}");
}

#[test]
fn recipes_and_object_files_are_joined() {
    if !enter() {
        return;
    }
    let Some(file) = object("joined", include_str!("../../../../xdp/count.c")) else { return };
    let recipe = format!("sample:only=roce,port=9,every=4+access:deny=10.0.0.0/8+fd00::/8+{file}+drop");
    good(&["attach", "veth0", "--recipe", &recipe]);
    good(&["send", "veth1", "--count", "40"]);
    let stats = || serde_json::from_str::<Value>(&good(&["stats", "veth0", "--json"])).unwrap();
    eventually("dropped by the last", || stats()["verdicts"]["XDP_DROP.packets"] == 40);
    assert_eq!(stats()["verdicts"]["XDP_PASS.packets"], 0);
    assert_eq!(good(&["samples", "veth0", "--count", "10"]).lines().count(), 10);
    // The access list ends what it denies; the parts behind it do not see it.
    good(&["map", "set", "veth0", "access", "198.18.0.0/15", "0"]);
    good(&["send", "veth1", "--count", "3"]);
    let dropped =
        |map: &str| good(&["map", "get", "veth0", map, "1"]).split_whitespace().nth(1).unwrap().to_owned();
    eventually("denied", || dropped("counters.2").starts_with("3+"));
    assert!(dropped("counters.3").starts_with("40+"), "{}", dropped("counters.3"));
    refused(&["attach", "veth1", "--recipe", "pass+/nonesuch.o"], 1, &["/nonesuch.o: No such file"]);
    refused(&["attach", "veth1", "--recipe", "pass+police"], 2, &["needs rate="]);
}
