//! Commands that fail, and their messages.

use crate::host::*;

#[test]
fn a_second_program_is_refused_and_the_first_is_named() {
    if !enter() {
        return;
    }
    good(&["attach", "veth0", "--recipe", "pass"]);
    let id = programs("veth0")[0]["id"].to_string();
    let says = format!("XDP program already attached (id {id}, roxie_pass, native mode)");
    refused(&["attach", "veth0", "--recipe", "drop"], 1, &[&says, "use --replace"]);
    refused(&["attach", "veth0", "--recipe", "drop", "--foreground"], 1, &[&says]);
    let other_mode = ["attach", "veth0", "--recipe", "drop", "--mode", "generic", "--replace"];
    refused(&other_mode, 1, &["no XDP in generic mode", "use --mode native"]);
    refused(&["detach", "veth0", "--mode", "generic"], 1, &["there is one in native mode"]);
    assert_eq!(programs("veth0")[0]["id"].to_string(), id);
    refused(&["detach", "veth1"], 1, &["no XDP program to detach"]);
}

#[test]
fn a_dispatcher_of_libxdp_is_refused_with_the_command_that_joins_it() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        SEC("xdp") int xdp_dispatcher(struct xdp_md *ctx) { return XDP_PASS; }
        LICENSE;
    "#;
    let Some(file) = object("dispatcher", source) else { return };
    good(&["attach", "veth0", &file]);
    let says = ["xdp-loader load veth0 FILE.o", "--replace takes"];
    refused(&["attach", "veth0", &file], 1, &says);
    refused(&["attach", "veth0", "--recipe", "drop", "--foreground"], 1, &says);
    // It has no other program, so xdp-loader refuses it; tests/peers has one that xdp-loader made.
    refused(&["attach", "veth0", "--recipe", "drop"], 1, &["xdp-loader"]);
}

#[test]
fn the_output_of_the_verifier_is_shown_completely() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        SEC("xdp") int careless(struct xdp_md *ctx) { return *(u8 *)DATA(ctx); }
        LICENSE;
    "#;
    let Some(file) = object("careless", source) else { return };
    let says = ["careless: the kernel refuses the program", "invalid access to packet", "processed 2 insns"];
    refused(&["attach", "veth0", &file], 1, &says);
    assert!(programs("veth0").is_empty());
    // It can be disassembled nevertheless.
    assert!(good(&["attach", "veth0", &file, "--dump"]).contains("*(u8 *)(r1 +0)"));
}

#[test]
fn the_message_of_the_kernel_is_shown() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        SEC("xdp") int single(struct xdp_md *ctx) { return XDP_PASS; }
        LICENSE;
    "#;
    ip(&["link", "set", "veth1", "mtu", "9000"]);
    let Some(file) = object("single", source) else { return };
    refused(&["attach", "veth0", &file, "--mode", "native"], 1, &["MTU is too large"]);
    let ended = roxie(&["attach", "veth0", &file]);
    assert!(ended.code == Some(0) && ended.err.contains("not in the driver"), "{ended:?}");
    assert!(ended.err.contains("MTU is too large") && ended.out.contains("generic mode"), "{ended:?}");
}

#[test]
fn the_missing_privilege_is_named() {
    if !enter() {
        return;
    }
    let ended = roxie_as_nobody(&["attach", "veth0", "--recipe", "pass"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("lacks CAP_BPF and CAP_NET_ADMIN"), "{ended:?}");
    good(&["attach", "veth0", "--recipe", "pass"]);
    let ended = roxie_as_nobody(&["detach", "veth0"]);
    assert!(ended.code == Some(1) && ended.err.contains("needs CAP_NET_ADMIN"), "{ended:?}");
    assert_eq!(programs("veth0").len(), 1);
    // Commands that only read need no privileges.
    let ended = roxie_as_nobody(&["list"]);
    assert!(ended.code == Some(0) && ended.out.contains("native"), "{ended:?}");
    let ended = roxie_as_nobody(&["attach", "veth0", "--recipe", "drop", "--dump"]);
    assert!(ended.code == Some(0) && ended.out.contains("exit"), "{ended:?}");
}

#[test]
fn a_missing_interface_or_file_is_named() {
    let files = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let broken = files.join(format!("roxie-xdp-broken-{}.o", std::process::id()));
    std::fs::write(&broken, b"\x7fELF and then nothing").unwrap();
    let broken = broken.to_str().unwrap();
    refused(
        &["attach", "nonesuch", "--recipe", "pass"],
        1,
        &["no network interface called 'nonesuch'", "lo"],
    );
    refused(&["detach", "nonesuch"], 1, &["no network interface"]);
    refused(&["stats", "nonesuch"], 1, &["no network interface"]);
    refused(&["attach", "lo", "/nonesuch.o"], 1, &["/nonesuch.o: No such file"]);
    refused(&["attach", "lo", "/etc/passwd"], 1, &["the object file cannot be read"]);
    refused(&["attach", "lo", broken], 1, &["the object file cannot be read"]);
    refused(&["attach", "lo"], 2, &["--recipe"]);
    refused(&["attach", "lo", "x.o", "--recipe", "pass"], 2, &["cannot be used with"]);
    refused(&["attach", "lo", "--recipe", "fly"], 2, &["no recipe 'fly'", "--help"]);
    refused(&["attach", "lo", "--recipe", "police"], 2, &["needs rate="]);
    refused(&["attach", "lo", "--recipe", "police:rate=5"], 2, &["rate=5: a whole number from 1024"]);
    refused(
        &["attach", "lo", "--recipe", "redirect:to=nonesuch"],
        1,
        &["no network interface called 'nonesuch'"],
    );
    refused(
        &["attach", "lo", "--recipe", "pass", "--mode", "native"],
        1,
        &["no native XDP", "--mode generic"],
    );
    std::fs::remove_file(broken).unwrap();
}

#[test]
fn numbers_are_checked_against_existing_queues_and_cpus() {
    if !enter() {
        return;
    }
    ip(&["link", "add", "pair0", "numrxqueues", "2", "type", "veth", "peer", "name", "pair1"]);
    let says = ["queues=3: pair0 has 2 receive queues", "queues=2 at most"];
    refused(&["attach", "pair0", "--recipe", "steer:queues=3"], 2, &says);
    refused(&["attach", "pair0", "--recipe", "lb:to=xsk,queues=3,ways=2"], 2, &says);
    good(&["attach", "pair0", "--recipe", "steer:queues=2"]);
    let ways = ["attach", "pair0", "--recipe", "lb:to=cpu,ways=8192", "--replace"];
    refused(&ways, 2, &["ways=8192: this machine has ", " at most"]);
    assert_eq!(programs("pair0")[0]["name"], "roxie_steer");
}

#[test]
fn a_warning_names_packets_that_a_veth_will_drop() {
    if !enter() {
        return;
    }
    let warned = |words: &[&str]| {
        let ended = roxie(&[&["attach"], words].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.err
    };
    let said = warned(&["veth0", "--recipe", "tx"]);
    assert!(
        said.contains("veth0 would drop packets that are sent back") && said.contains("generic"),
        "{said}"
    );
    assert_eq!(programs("veth0")[0]["mode"], "generic");
    good(&["detach", "veth0"]);
    let said = warned(&["veth0", "--recipe", "tx", "--mode", "native"]);
    assert!(said.contains("veth0 drops packets that are sent back: the peer of a veth"), "{said}");
    // veth0 has no receiver for its packets, but its program lets veth1 send to it.
    assert_eq!(warned(&["veth1", "--recipe", "tx"]), "");
    assert_eq!(warned(&["veth0", "--recipe", "tx", "--replace"]), "");
    good(&["detach", "veth0"]);
    assert_eq!(warned(&["veth0", "--recipe", "tx", "--mode", "generic"]), "", "the stack sends it");
}

#[test]
fn a_program_for_one_buffer_is_warned_of_a_large_mtu() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        SEC("xdp") int single(struct xdp_md *ctx) { return XDP_PASS; }
        LICENSE;
    "#;
    let Some(file) = object("single-mtu", source) else { return };
    // The packets of this test are short; the MTU of the peer decides whether the kernel refuses.
    ip(&["link", "set", "veth0", "mtu", "9000"]);
    let ended = roxie(&["attach", "veth0", &file, "--mode", "native"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("handles no multi-buffer packets") && ended.err.contains("9000"), "{ended:?}");
}

#[test]
fn sending_and_testing_name_what_is_missing() {
    if !enter() {
        return;
    }
    let ended = roxie_as_nobody(&["send", "veth0", "--count", "1"]);
    assert!(ended.code == Some(1) && ended.err.contains("lacks CAP_NET_RAW: try with sudo"), "{ended:?}");
    let ended = roxie_as_nobody(&["test", "--netdev", "veth0"]);
    assert!(ended.code == Some(1), "{ended:?}");
    assert!(ended.err.contains("lacks CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW: try with sudo"), "{ended:?}");
    refused(
        &["test", "--netdev", "veth0", "--mode", "offload"],
        1,
        &["veth0: the driver has no XDP offload", "--mode native works here"],
    );
    refused(
        &["test", "--mode", "offload"],
        1,
        &["the driver has no XDP offload", "--mode native works here"],
    );
}
