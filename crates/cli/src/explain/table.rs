//! What `roxie explain` knows: the causes of this device, and the names of verbs.h, rdma_cma.h and IBA.

use roxie::transport::{Cause, Errno, WcStatus};
use roxie::wire::cm::RejReason;

/// One meaning of a name or number.
pub(super) struct Entry {
    /// What it is.
    pub(super) kind: &'static str,
    /// As headers and programs write it.
    pub(super) name: String,
    pub(super) number: Option<u32>,
    /// Whether programs print the number in hexadecimal.
    pub(super) is_hex: bool,
    /// What happened.
    pub(super) meaning: String,
    /// What to look at or to do; may be empty.
    pub(super) remedy: String,
}

impl Entry {
    /// Whether a word of the user names this entry.
    pub(super) fn answers(&self, word: &str) -> bool {
        let number = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => word.trim_start_matches('-').parse(),
        };
        match number {
            Ok(number) => self.number == Some(number),
            Err(_) => bare(word) == bare(&self.name),
        }
    }
}

/// A name without the prefix of its header, in upper case with underscores.
pub(super) fn bare(name: &str) -> String {
    let upper: String =
        name.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    let prefixes = ["IBV_WC_", "IBV_EVENT_", "RDMA_CM_EVENT_", "NAK_"];
    let stripped = prefixes.iter().find_map(|prefix| upper.strip_prefix(prefix));
    stripped.unwrap_or(&upper).to_owned()
}

/// Everything that `roxie explain` knows.
pub(super) fn all() -> Vec<Entry> {
    let causes = Cause::ALL.iter().map(|cause| {
        let meaning = format!("{} Status {}.", cause.meaning(), status_name(cause.status()));
        let number = Some(cause.vendor_err());
        Entry { is_hex: true, ..entry("vendor_err", format!("{cause:?}"), number, &meaning, cause.remedy()) }
    });
    let statuses = STATUSES.iter().map(|(status, name, text)| {
        let causes: Vec<String> = Cause::ALL
            .iter()
            .filter(|cause| cause.status() == *status)
            .map(|cause| format!("{:#x}: {}", cause.vendor_err(), cause.meaning()))
            .collect();
        let remedy = if causes.is_empty() {
            String::new()
        } else {
            format!("vendor_err of the completion tells why. {}", causes.join(" "))
        };
        entry("status", format!("IBV_WC_{name}"), Some(*status as u32), text, &remedy)
    });
    let errnos = ERRNOS.iter().filter_map(|(errno, meaning, remedy)| {
        Some(entry("errno", Errno::new(*errno).name()?.to_owned(), Some(*errno as u32), meaning, remedy))
    });
    let naks =
        NAKS.iter().map(|(name, meaning, remedy)| entry("packet", (*name).to_owned(), None, meaning, remedy));
    let events = numbered("event", "IBV_EVENT_", EVENTS);
    let cm_events = numbered("event", "RDMA_CM_EVENT_", CM_EVENTS);
    let reasons = (1..=u16::from(u8::MAX)).map(RejReason).filter_map(|reason| {
        let words = reason.words()?;
        let meaning = format!("The peer rejected the connection: {words}.");
        let remedy = reason.usual_cause().map(|why| format!("Usual cause: {why}.")).unwrap_or_default();
        let name = words.to_owned();
        Some(entry("reject reason", name, Some(reason.0.into()), &meaning, &remedy))
    });
    causes.chain(statuses).chain(errnos).chain(naks).chain(events).chain(cm_events).chain(reasons).collect()
}

fn entry(kind: &'static str, name: String, number: Option<u32>, meaning: &str, remedy: &str) -> Entry {
    Entry { kind, name, number, is_hex: false, meaning: meaning.to_owned(), remedy: remedy.to_owned() }
}

fn numbered(
    kind: &'static str,
    prefix: &'static str,
    rows: &'static [(&'static str, &'static str, &'static str)],
) -> impl Iterator<Item = Entry> {
    rows.iter().enumerate().map(move |(number, (name, meaning, remedy))| {
        entry(kind, format!("{prefix}{name}"), Some(number as u32), meaning, remedy)
    })
}

fn status_name(status: WcStatus) -> &'static str {
    let row = STATUSES.iter().find(|row| row.0 == status);
    row.map_or("unknown", |row| row.1)
}

const ELSEWHERE: &str = "This device never reports it.";

/// `enum ibv_wc_status` of verbs.h.
const STATUSES: &[(WcStatus, &str, &str)] = &[
    (WcStatus::Success, "SUCCESS", "The work request succeeded."),
    (WcStatus::LocLenErr, "LOC_LEN_ERR", "A length did not fit at this side."),
    (WcStatus::LocQpOpErr, "LOC_QP_OP_ERR", "This side's queue pair cannot carry out the operation."),
    (WcStatus::LocEecOpErr, "LOC_EEC_OP_ERR", ELSEWHERE),
    (WcStatus::LocProtErr, "LOC_PROT_ERR", "The memory of the work request may not be accessed."),
    (WcStatus::WrFlushErr, "WR_FLUSH_ERR", "The work request was not executed: its queue pair had failed."),
    (WcStatus::MwBindErr, "MW_BIND_ERR", "A memory window was not bound."),
    (WcStatus::BadRespErr, "BAD_RESP_ERR", "The peer's response made no sense."),
    (WcStatus::LocAccessErr, "LOC_ACCESS_ERR", "The peer accessed memory of this side that it may not."),
    (WcStatus::RemInvReqErr, "REM_INV_REQ_ERR", "The peer found the request invalid."),
    (WcStatus::RemAccessErr, "REM_ACCESS_ERR", "The peer refused access to its memory."),
    (WcStatus::RemOpErr, "REM_OP_ERR", "The peer could not complete the request."),
    (WcStatus::RetryExcErr, "RETRY_EXC_ERR", "The peer did not answer."),
    (WcStatus::RnrRetryExcErr, "RNR_RETRY_EXC_ERR", "The peer never had a receive posted."),
    (WcStatus::LocRddViolErr, "LOC_RDD_VIOL_ERR", ELSEWHERE),
    (WcStatus::RemInvRdReqErr, "REM_INV_RD_REQ_ERR", "The peer refused a READ of reliable datagrams."),
    (WcStatus::RemAbortErr, "REM_ABORT_ERR", ELSEWHERE),
    (WcStatus::InvEecnErr, "INV_EECN_ERR", ELSEWHERE),
    (WcStatus::InvEecStateErr, "INV_EEC_STATE_ERR", ELSEWHERE),
    (WcStatus::FatalErr, "FATAL_ERR", ELSEWHERE),
    (WcStatus::RespTimeoutErr, "RESP_TIMEOUT_ERR", ELSEWHERE),
    (
        WcStatus::GeneralErr,
        "GENERAL_ERR",
        "Another process completed a receive of a shared receive queue with a status that this build \
         does not know.",
    ),
    (WcStatus::TmErr, "TM_ERR", ELSEWHERE),
    (WcStatus::TmRndvIncomplete, "TM_RNDV_INCOMPLETE", ELSEWHERE),
];

const LOG: &str = "ROXIE_LOG=errors prints which object and which value.";

/// Errnos of verbs and rdma_cm calls.
const ERRNOS: &[(i32, &str, &str)] = &[
    (
        1,
        "The process lacks a privilege.",
        "Raw packet queue pairs and Q_Keys with the top bit need CAP_NET_RAW.",
    ),
    (2, "There is no such object or entry.", LOG),
    (11, "Nothing is available now.", "Poll or wait again: an empty queue is no error."),
    (
        12,
        "A queue is full, a limit is reached, or memory cannot be had.",
        "A full send queue: signal and poll completions before the next post. A failed ibv_reg_mr: \
         'ulimit -l' does not matter here, but the memory must be mapped. ROXIE_LOG=errors tells the \
         limit.",
    ),
    (13, "The access rights do not permit it.", LOG),
    (14, "An address is not mapped in this process.", "Check address and length."),
    (
        16,
        "The object is still in use.",
        "Destroy what uses it first: QPs before CQs, SRQs and PDs; regions and windows before PDs; \
         acknowledge all events.",
    ),
    (19, "There is no such device.", "'roxie devinfo' shows the device; start the program by 'roxie run'."),
    (22, "An argument is wrong, or not allowed in this state.", LOG),
    (24, "The process has no file descriptor left.", "Raise 'ulimit -n'."),
    (28, "A table is full.", LOG),
    (38, "The library does not implement the function.", "docs/support.md lists what is implemented."),
    (61, "The entry is empty or does not exist.", "GID tables: 'roxie devinfo' lists the entries."),
    (71, "The peer broke the protocol.", "A capture shows its packets."),
    (90, "The message is too long.", LOG),
    (
        95,
        "The device does not support it.",
        "docs/support.md lists what is supported; ROXIE_LOG=errors tells what was asked for.",
    ),
    (98, "The address or port is in use.", "Choose another port, or end the program that listens on it."),
    (99, "The address is none of this machine.", "'roxie devinfo' lists the addresses of the device."),
    (101, "There is no route to the address.", "'ip route get ADDRESS'."),
    (104, "The peer reset the connection.", "Look at the peer."),
    (107, "The socket or id is not connected.", ""),
    (110, "The peer did not answer in time.", "'ping' it; UDP port 4791 must be open in both directions."),
    (
        111,
        "No program listens at that address and port.",
        "Start the server first, with the same port space (RDMA_PS_TCP).",
    ),
    (113, "The host cannot be reached.", "'ping' it: no neighbour answers for the address."),
];

/// Acknowledgement packets that refuse something (IBA 9.7.5.2).
const NAKS: &[(&str, &str, &str)] = &[
    (
        "NAK PSN sequence error",
        "The responder misses a packet before this one.",
        "Packets were lost or reordered; the requester resends. Many of them cost speed: look at \
         counters of drops ('roxie top').",
    ),
    (
        "NAK invalid request",
        "The responder found the request invalid; the connection ends.",
        "See 'roxie explain 0x41'.",
    ),
    (
        "NAK remote access error",
        "The responder refused access to its memory; the connection ends.",
        "See 'roxie explain 0x42'.",
    ),
    (
        "NAK remote operational error",
        "The responder could not complete the request; the connection ends.",
        "See 'roxie explain 0x43'.",
    ),
    ("NAK invalid RD request", "The responder refused a READ of reliable datagrams.", ""),
    (
        "RNR NAK",
        "The responder has no receive posted; the requester waits and retransmits.",
        "Post more receives, earlier.",
    ),
];

/// `enum ibv_event_type` of verbs.h.
const EVENTS: &[(&str, &str, &str)] = &[
    (
        "CQ_ERR",
        "A completion queue overflowed; completions are lost.",
        "Create it with room for every work request that can be outstanding, or poll more often.",
    ),
    ("QP_FATAL", "A queue pair failed because its completion queue did.", ""),
    (
        "QP_REQ_ERR",
        "A request of the peer broke a rule; no receive was in use.",
        "ROXIE_LOG=errors of the peer names its request; its completion has the NAK.",
    ),
    (
        "QP_ACCESS_ERR",
        "A WRITE, READ or atomic of the peer named memory that it may not access.",
        "Check rkey, address, length and access flags that this side has told the peer.",
    ),
    ("COMM_EST", "A message arrived while the queue pair was in RTR.", "No error: move it to RTS."),
    ("SQ_DRAINED", "The send queue is drained (state SQD).", ""),
    ("PATH_MIG", "The connection uses its alternate path.", ""),
    ("PATH_MIG_ERR", "The connection could not use its alternate path.", ""),
    ("DEVICE_FATAL", "The device failed.", "The process must end and start again."),
    ("PORT_ACTIVE", "The port is active.", ""),
    ("PORT_ERR", "The port is down.", "'ip link' shows the netdev."),
    ("LID_CHANGE", "The LID changed (InfiniBand only).", ""),
    ("PKEY_CHANGE", "The P_Key table changed (InfiniBand only).", ""),
    ("SM_CHANGE", "The subnet manager changed (InfiniBand only).", ""),
    ("SRQ_ERR", "A shared receive queue failed.", ""),
    ("SRQ_LIMIT_REACHED", "A shared receive queue has fewer receives than its limit.", "Post receives."),
    (
        "QP_LAST_WQE_REACHED",
        "A queue pair in ERR takes no more receives of its shared receive queue.",
        "It may be destroyed.",
    ),
    ("CLIENT_REREGISTER", "Clients register with the subnet manager again (InfiniBand only).", ""),
    ("GID_CHANGE", "The GID table changed.", "'roxie devinfo' shows it."),
    ("WQ_FATAL", "A work queue failed.", ""),
];

/// `enum rdma_cm_event_type` of rdma_cma.h.
const CM_EVENTS: &[(&str, &str, &str)] = &[
    ("ADDR_RESOLVED", "The address is resolved.", ""),
    ("ADDR_ERROR", "The address cannot be resolved.", "'ip route get ADDRESS', and 'ping'."),
    ("ROUTE_RESOLVED", "The route is resolved.", ""),
    ("ROUTE_ERROR", "The route cannot be resolved.", "'ip route get ADDRESS'."),
    ("CONNECT_REQUEST", "A peer wants to connect.", ""),
    ("CONNECT_RESPONSE", "The peer accepted; the program establishes the connection itself.", ""),
    ("CONNECT_ERROR", "The connection failed while it was set up.", "The status has an errno."),
    ("UNREACHABLE", "The peer did not answer.", "'ping' it; UDP port 4791 must be open both ways."),
    (
        "REJECTED",
        "The peer rejected the connection.",
        "The status of the event is the reject reason: 'roxie explain STATUS'.",
    ),
    ("ESTABLISHED", "The connection is established.", ""),
    ("DISCONNECTED", "The connection has ended.", "Call rdma_disconnect, and destroy the queue pair."),
    ("DEVICE_REMOVAL", "The device was removed.", ""),
    ("MULTICAST_JOIN", "The multicast group is joined.", ""),
    ("MULTICAST_ERROR", "The multicast group failed.", "The status has an errno."),
    ("ADDR_CHANGE", "The address of the netdev changed.", ""),
    ("TIMEWAIT_EXIT", "The connection's numbers may be used again.", ""),
    ("ADDRINFO_RESOLVED", "The name is resolved.", ""),
    ("ADDRINFO_ERROR", "The name cannot be resolved.", ""),
    ("USER", "Another thread of the program sent the event.", ""),
    ("INTERNAL", "An event of librdmacm itself.", ""),
];
