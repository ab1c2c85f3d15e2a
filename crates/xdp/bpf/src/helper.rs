//! Kernel helper functions by number (`linux/bpf.h`, `__BPF_FUNC_MAPPER`) that XDP programs and roxie's
//! classifiers use.

use crate::numbered::numbered;

/// Names of all helpers without the prefix `bpf_`, for messages. Line N, from 0, names helper N.
const NAMES: &str = include_str!("helper/names.txt");

numbered! {
    /// A kernel function that a program can call by number.
    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    #[allow(missing_docs, reason = "bpf-helpers(7) describes them under these names")]
    pub enum Helper {
        MapLookupElem = 1 "map_lookup_elem",
        MapUpdateElem = 2 "map_update_elem",
        MapDeleteElem = 3 "map_delete_elem",
        KtimeGetNs = 5 "ktime_get_ns",
        TracePrintk = 6 "trace_printk",
        GetPrandomU32 = 7 "get_prandom_u32",
        GetSmpProcessorId = 8 "get_smp_processor_id",
        TailCall = 12 "tail_call",
        Redirect = 23 "redirect",
        PerfEventOutput = 25 "perf_event_output",
        SkbLoadBytes = 26 "skb_load_bytes",
        CsumDiff = 28 "csum_diff",
        GetNumaNodeId = 42 "get_numa_node_id",
        XdpAdjustHead = 44 "xdp_adjust_head",
        RedirectMap = 51 "redirect_map",
        XdpAdjustMeta = 54 "xdp_adjust_meta",
        XdpAdjustTail = 65 "xdp_adjust_tail",
        FibLookup = 69 "fib_lookup",
        MapPushElem = 87 "map_push_elem",
        MapPopElem = 88 "map_pop_elem",
        MapPeekElem = 89 "map_peek_elem",
        SpinLock = 93 "spin_lock",
        SpinUnlock = 94 "spin_unlock",
        Jiffies64 = 118 "jiffies64",
        KtimeGetBootNs = 125 "ktime_get_boot_ns",
        RingbufOutput = 130 "ringbuf_output",
        RingbufReserve = 131 "ringbuf_reserve",
        RingbufSubmit = 132 "ringbuf_submit",
        RingbufDiscard = 133 "ringbuf_discard",
        RingbufQuery = 134 "ringbuf_query",
        KtimeGetCoarseNs = 160 "ktime_get_coarse_ns",
        CheckMtu = 163 "check_mtu",
        ForEachMapElem = 164 "for_each_map_elem",
        TraceVprintk = 177 "trace_vprintk",
        Loop = 181 "loop",
        Strncmp = 182 "strncmp",
        XdpGetBuffLen = 188 "xdp_get_buff_len",
        XdpLoadBytes = 189 "xdp_load_bytes",
        XdpStoreBytes = 190 "xdp_store_bytes",
        MapLookupPercpuElem = 195 "map_lookup_percpu_elem",
        KtimeGetTaiNs = 208 "ktime_get_tai_ns",
    }
    id: i32, from_id;
    /// Returns the name in C without the prefix `bpf_`.
    name
}

/// Returns the name of the helper with this number, without the prefix `bpf_`.
pub(crate) fn name_of(id: i32) -> Option<&'static str> {
    NAMES.lines().nth(usize::try_from(id).ok()?)
}

#[cfg(test)]
mod tests {
    use super::Helper;

    #[test]
    fn the_list_of_all_names_has_each_helper_at_its_number() {
        for helper in Helper::ALL {
            assert_eq!(super::name_of(helper.id()), Some(helper.name()));
        }
        assert_eq!((super::name_of(-1), super::name_of(212)), (None, None));
    }

    #[test]
    fn helper_numbers_agree_with_the_installed_kernel_header() {
        let Ok(header) = std::fs::read_to_string("/usr/include/linux/bpf.h") else {
            println!("skipped: needs /usr/include/linux/bpf.h");
            return;
        };
        // There is one row per helper, starting with number 0. Newer headers also state the number.
        let numbers: std::collections::HashMap<&str, i32> = header
            .lines()
            .filter_map(|line| line.trim().strip_prefix("FN(")?.split_once(')'))
            .map(|(row, _)| row.split(',').next().unwrap_or(row))
            .zip(0..)
            .collect();
        for helper in Helper::ALL {
            if let Some(&number) = numbers.get(helper.name()) {
                assert_eq!(helper.id(), number, "{}", helper.name());
            }
        }
    }
}
