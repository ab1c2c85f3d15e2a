/* Wraps IPv4 in IPv4. A loop computes the checksum of the outer header. */
#include "xdp.h"

SEC("xdp") int encapsulate(struct xdp_md *ctx)
{
	struct eth *eth = DATA(ctx);
	struct ipv4 *inner = (void *)(eth + 1);
	if ((void *)(inner + 1) > DATA_END(ctx) || eth->type != be16(ETH_IPV4))
		return XDP_PASS;
	struct eth link = *eth;
	struct ipv4 outer = {
		.version_ihl = 0x45,
		.total_len = be16((u16)(be16(inner->total_len) + sizeof(outer))),
		.ttl = 64,
		.protocol = IPIP,
		.source = inner->dest,
		.dest = inner->source,
	};
	u32 sum = 0;
	u16 *words = (u16 *)&outer;
#pragma unroll
	for (u32 word = 0; word < sizeof(outer) / 2; word++)
		sum += words[word];
	sum = (sum & 0xffff) + (sum >> 16);
	outer.check = ~((sum & 0xffff) + (sum >> 16));

	if (adjust_head(ctx, -(int)sizeof(outer)))
		return XDP_DROP;
	eth = DATA(ctx);
	if ((void *)(eth + 1) + sizeof(outer) > DATA_END(ctx))
		return XDP_ABORTED;
	*eth = link;
	*(struct ipv4 *)(eth + 1) = outer;
	return XDP_TX;
}

LICENSE;
