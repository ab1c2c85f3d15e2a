/* What programs take from the kernel: its version and configuration, its types and its functions. */
#include "../../../../../xdp/xdp.h"

#define KCONFIG __attribute__((section(".kconfig")))
#define KSYM __attribute__((section(".ksyms")))
#define WEAK __attribute__((weak))

extern int LINUX_KERNEL_VERSION KCONFIG;
extern _Bool CONFIG_BPF KCONFIG;
extern int CONFIG_ROXIE_NUMBER KCONFIG WEAK;
extern char CONFIG_ROXIE_TEXT[8] KCONFIG WEAK;

extern int bpf_xdp_metadata_rx_hash(const struct xdp_md *ctx, u32 *hash, u32 *type) KSYM;
extern int roxie_absent_function(struct xdp_md *ctx) KSYM WEAK;
extern int roxie_needed_function(struct xdp_md *ctx) KSYM;

struct net_device {
	int ifindex;
	int roxie_absent_field;
} __attribute__((preserve_access_index));

struct roxie_absent_type {
	int field;
};

MAP(numbers, ARRAY, u32, u64, 1);
/* A tool would set the number of entries. */
struct {
	UINT(type, ARRAY);
	TYPE(key, u32);
	TYPE(value, u64);
} per_cpu SEC(".maps");

struct {
	UINT(type, 999);
	UINT(max_entries, 1);
} unknown SEC(".maps");

SEC("xdp") int configured(struct xdp_md *ctx)
{
	if (!CONFIG_BPF || LINUX_KERNEL_VERSION < 0x50000)
		return XDP_ABORTED;
	if (CONFIG_ROXIE_NUMBER == 4321 && CONFIG_ROXIE_TEXT[0] == 'a' && CONFIG_ROXIE_TEXT[1] == 'b')
		return XDP_TX;
	return XDP_PASS;
}

SEC("xdp") int adapted(struct xdp_md *ctx)
{
	struct net_device *device = 0;
	if (__builtin_preserve_field_info(device->roxie_absent_field, 2))
		return __builtin_preserve_field_info(device->roxie_absent_field, 0);
	if (__builtin_preserve_type_info(*(struct roxie_absent_type *)0, 0))
		return XDP_ABORTED;
	return __builtin_preserve_field_info(device->ifindex, 2) ? XDP_DROP : XDP_ABORTED;
}

SEC("xdp") int asks_first(struct xdp_md *ctx)
{
	return roxie_absent_function ? roxie_absent_function(ctx) : XDP_DROP;
}

SEC("xdp") int hashed(struct xdp_md *ctx)
{
	u32 hash = 0, type = 0;
	return bpf_xdp_metadata_rx_hash(ctx, &hash, &type) < 0 ? XDP_PASS : XDP_TX;
}

SEC("xdp") int broken_call(struct xdp_md *ctx)
{
	return roxie_needed_function(ctx);
}

SEC("xdp") int broken_map(struct xdp_md *ctx)
{
	return map_lookup(&unknown, &(u32){ 0 }) ? XDP_TX : XDP_PASS;
}

SEC("xdp") int plain(struct xdp_md *ctx)
{
	return map_lookup(&numbers, &(u32){ 0 }) ? XDP_TX : XDP_PASS;
}

SEC("xdp") int unsized(struct xdp_md *ctx)
{
	return map_lookup(&per_cpu, &(u32){ 1 }) ? XDP_TX : XDP_PASS;
}

LICENSE;
