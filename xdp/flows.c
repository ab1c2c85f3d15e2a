/* A table of flows with atomic counters. The first packet of a flow creates its entry. */
#include "xdp.h"

struct flow {
	u32 source;
	u32 dest;
	u16 source_port;
	u16 dest_port;
	u32 protocol;
};

struct usage {
	u64 packets;
	u64 bytes;
	u32 last_len;
	u32 queue;
};

MAP(flows, HASH, struct flow, struct usage, 64);

SEC("xdp") int track(struct xdp_md *ctx)
{
	struct cursor cursor = start(ctx);
	if (ethernet(&cursor) != be16(ETH_IPV4))
		return XDP_PASS;
	struct ipv4 *ip = network4(&cursor);
	if (!ip || (ip->protocol != UDP && ip->protocol != TCP))
		return XDP_PASS;
	u16 *ports = cursor.at;
	if ((void *)(ports + 2) > cursor.end)
		return XDP_DROP;
	struct flow flow = { ip->source, ip->dest, ports[0], ports[1], ip->protocol };
	u64 len = cursor.end - DATA(ctx);
	struct usage *usage = map_lookup(&flows, &flow);
	if (!usage) {
		struct usage fresh = { 1, len, len, ctx->rx_queue_index };
		return map_update(&flows, &flow, &fresh, NOEXIST) ? XDP_DROP : XDP_TX;
	}
	__sync_fetch_and_add(&usage->packets, 1);
	__sync_fetch_and_add(&usage->bytes, len);
	usage->last_len = len;
	/* Remove a flow from time to time. */
	if (usage->packets > 5)
		map_delete(&flows, &flow);
	return XDP_PASS;
}

LICENSE;
