/* Answers pings: exchanges the addresses, changes the type, updates the checksum by the difference. */
#include "xdp.h"

INLINE u16 fold(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

SEC("xdp") int echo(struct xdp_md *ctx)
{
	struct cursor cursor = start(ctx);
	if (ethernet(&cursor) != be16(ETH_IPV4))
		return XDP_PASS;
	struct ipv4 *ip = network4(&cursor);
	if (!ip || ip->protocol != ICMP)
		return XDP_PASS;
	struct icmp *icmp = NEED(&cursor, struct icmp);
	if (!icmp || icmp->type != 8)
		return XDP_PASS;

	struct icmp before = *icmp;
	u16 check = icmp->check;
	icmp->check = 0;
	before.check = 0;
	icmp->type = 0;
	icmp->check = fold(csum_diff(&before, sizeof(before), icmp, sizeof(*icmp), (u16)~check));

	u32 source = ip->source;
	ip->source = ip->dest;
	ip->dest = source;
	struct eth *eth = DATA(ctx);
	if ((void *)(eth + 1) > DATA_END(ctx))
		return XDP_ABORTED;
	u8 mac[6];
	__builtin_memcpy(mac, eth->source, 6);
	__builtin_memcpy(eth->source, eth->dest, 6);
	__builtin_memcpy(eth->dest, mac, 6);
	return XDP_TX;
}

LICENSE;
