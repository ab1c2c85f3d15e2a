//! The tables of docs/support.md, generated from the opcode table, the queue pair, the symbol tables of the
//! two libraries, and the operations of a context.

use std::collections::BTreeMap;
use std::fs;

use crate::{operations, root};

#[expect(dead_code, reason = "the build scripts use the rest")]
#[path = "../../crates/nic/verbs-c/build/table.rs"]
mod table;

use table::What;

/// Features, and the names that stand for each: exported functions, or, after a dot, operations of the
/// context, which inline functions call. `*` stands for any letters. The names of a feature must agree.
const FEATURES: [(&str, &[&str]); 38] = [
    ("protection domains", &["ibv_alloc_pd"]),
    ("memory regions", &["ibv_reg_mr", "ibv_reg_mr_iova*"]),
    (
        "completion queues (resizable, classic and extended)",
        &["ibv_create_cq", "ibv_resize_cq", ".create_cq_ex", ".poll_cq"],
    ),
    ("completion channels", &["ibv_*_comp_channel", "ibv_*_cq_event*", ".req_notify_cq"]),
    (
        "queue pairs (`ibv_post_send` and `ibv_wr_*`)",
        &["ibv_create_qp", ".post_send", ".post_recv", ".create_qp_ex", "ibv_qp_to_qp_ex"],
    ),
    ("shared receive queues (resizable)", &["ibv_*_srq", ".create_srq_ex", ".post_srq_recv"]),
    ("address handles", &["ibv_create_ah*", "ibv_init_ah_from_wc"]),
    ("asynchronous events", &["ibv_*_async_event"]),
    ("connections", &["rdma_listen", "rdma_connect", "rdma_accept", "rdma_reject", "rdma_disconnect"]),
    ("endpoints", &["rdma_create_ep", "rdma_get_request", "rdma_getaddrinfo"]),
    ("memory windows (types 1 and 2B)", &[".alloc_mw", ".bind_mw", ".dealloc_mw"]),
    ("changing a memory region", &["ibv_rereg_mr"]),
    ("on-demand paging", &[".advise_mr"]),
    ("null memory regions", &[".alloc_null_mr"]),
    ("XRC domains", &[".*_xrcd", ".get_srq_num", ".open_qp"]),
    ("multicast (IPv4 and IPv6 groups)", &["ibv_*tach_mcast", "rdma_*_multicast*"]),
    (
        "rsockets (streams, datagrams)",
        &["ra*", "rb*", "rc*", "re*", "rf*", "rg*", "ri*", "rl*", "rp*", "rr*", "rs*", "rw*"],
    ),
    ("flow steering and raw packets", &[".ibv_*_flow", ".*_wq", ".*_rwq_ind_table"]),
    ("flow actions of IPsec", &[".*_flow_action*"]),
    ("flow counters", &[".*_counters*"]),
    ("completion counters", &["*ibv_*comp_cntr*"]),
    ("completion moderation", &[".modify_cq"]),
    ("tag matching", &[".post_srq_ops"]),
    ("rate limits", &[".modify_qp_rate_limit"]),
    ("device clock", &[".query_rt_values"]),
    ("device memory", &["ibv_*import_dm", ".*_dm", ".reg_dm_mr"]),
    ("dma-bufs of device memory", &["ibv_dm_*", ".dm_export_dmabuf_fd"]),
    ("regions of dma-bufs", &["ibv_reg_dmabuf_mr"]),
    ("buffers of the library", &["ibv_*_buf", "ibv_*_buf_*", ".*_buf"]),
    ("regions with extended attributes", &["ibv_reg_mr_ex", ".reg_mr_ex"]),
    ("DMA handles", &["ibv_*_dmah", ".*_dmah"]),
    ("objects of another context of the process", &["ibv_import_*", "ibv_unimport_*"]),
    ("thread and parent domains", &[".*_td", ".alloc_parent_domain"]),
    ("port speed", &["ibv_query_port_speed"]),
    ("structures of the kernel interface", &["ibv_copy_*_kern"]),
    ("Ethernet addresses of GIDs", &["ibv_resolve_eth_l2_from_gid"]),
    ("asynchronous `rdma_getaddrinfo`", &["rdma_*_addrinfo"]),
    ("events made by the program", &["rdma_write_cm_event"]),
];

/// What a program may ask for by name, and whether we have it.
type Names = BTreeMap<String, bool>;

/// Returns the text between the marks of docs/support.md.
pub(crate) fn text() -> String {
    let (ibverbs, rdmacm) = (exported("ibverbs.txt", "IBVERBS_1"), exported("rdmacm.txt", "RDMACM_1"));
    let count = |names: &Names| format!("{} of {}", names.values().filter(|has| **has).count(), names.len());
    let counts = format!("libibverbs {}, librdmacm {}", count(&ibverbs), count(&rdmacm));
    let names: Names = ibverbs.into_iter().chain(rdmacm).chain(context_operations()).collect();
    let (have, lack): (Vec<_>, Vec<_>) =
        FEATURES.iter().partition(|(words, patterns)| has(words, patterns, &names));
    for (name, has) in &names {
        let named = FEATURES.iter().any(|(_, patterns)| patterns.iter().any(|p| matches(p, name)));
        assert!(*has || named, "no feature says that {name} is missing");
    }
    let list = |features: Vec<&(&str, _)>| {
        features.iter().map(|(words, _)| format!("- {words}\n")).collect::<String>()
    };
    format!(
        "{}\nPublic functions implemented: {counts}.\n\nSupported verbs and connection management:\n\n{}\n\
         **Not supported:**\n\n{}",
        operations::table(),
        list(have),
        list(lack),
    )
}

fn has(words: &str, patterns: &[&str], names: &Names) -> bool {
    let mut answers = patterns.iter().flat_map(|pattern| {
        let mut hits = names.iter().filter(|(name, _)| matches(pattern, name)).peekable();
        assert!(hits.peek().is_some(), "{words}: nothing is called {pattern}");
        hits.map(|(_, has)| *has)
    });
    let first = answers.next().expect("a feature has names");
    assert!(answers.all(|has| has == first), "{words}: some of it is implemented and some is not");
    first
}

/// Whether the pattern fits the name.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
        }),
    }
}

/// The functions in the public nodes of a symbol table.
fn exported(file: &str, public: &str) -> Names {
    let text = fs::read_to_string(root().join("crates/nic/verbs-c/symbols").join(file)).expect("exists");
    let nodes = table::parse(&text);
    let nodes = nodes.iter().filter(|node| node.name.starts_with(public));
    nodes
        .flat_map(|node| &node.symbols)
        .map(|symbol| (symbol.name.clone(), matches!(symbol.what, What::Function(_))))
        .collect()
}

/// The operations of `ibv_context`, after a dot: slots of its structures, filled or not.
fn context_operations() -> Names {
    let read =
        |file: &str| fs::read_to_string(root().join("crates/nic/verbs-c/src").join(file)).expect("exists");
    let (layout, filled) = (read("abi/context.rs"), read("ibv/device.rs"));
    let structures = ["pub struct ibv_context_ops {", "pub struct verbs_context {"];
    let slots = structures.iter().flat_map(|start| {
        let (_, body) = layout.split_once(start).expect("the structure is there");
        body.lines()
            .take_while(|line| *line != "}")
            .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'))
    });
    let slots = slots.map(|(name, _)| name).filter(|name| {
        let other = ["r#priv", "sz", "context"];
        !name.starts_with('_') && !name.starts_with("placeholder") && !other.contains(name)
    });
    // `verbs.name = Some(function)`, or `module::name` in the list of `set!`.
    let ways = |name: &str| [format!(".{name} = Some("), format!("::{name},"), format!("::{name})")];
    slots.map(|name| (format!(".{name}"), ways(name).iter().any(|way| filled.contains(way)))).collect()
}
