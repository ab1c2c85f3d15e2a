/* Packets and bytes by EtherType class, per CPU. */
#include "xdp.h"

struct counter {
	u64 packets;
	u64 bytes;
};

MAP(counters, PERCPU_ARRAY, u32, struct counter, 4);

SEC("xdp") int count(struct xdp_md *ctx)
{
	struct cursor cursor = start(ctx);
	int type = ethernet(&cursor);
	u32 class = type < 0 ? 0 : type == be16(ETH_IPV4) ? 1 : type == be16(ETH_IPV6) ? 2 : 3;
	struct counter *counter = map_lookup(&counters, &class);
	if (!counter)
		return XDP_ABORTED;
	counter->packets++;
	counter->bytes += buff_len(ctx);
	return XDP_PASS;
}

LICENSE;
