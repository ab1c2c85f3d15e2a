/* A packet filter with addresses and ports in maps and the default verdict in global data. */
#include "xdp.h"

enum { BY_SOURCE = 1, BY_DEST = 2, BY_PORT = 4 };

const volatile u32 features = BY_SOURCE | BY_DEST | BY_PORT;
const volatile u32 on_match = XDP_DROP;
u32 on_miss = XDP_PASS;
u64 matched;
u64 missed;

MAP(addresses, PERCPU_HASH, u32, u64, 64);
MAP(ports, ARRAY, u32, u32, 65536);

INLINE int address(u32 address)
{
	u64 *hits = map_lookup(&addresses, &address);
	if (hits)
		*hits += 1;
	return hits != 0;
}

SEC("xdp") int filter(struct xdp_md *ctx)
{
	struct cursor cursor = start(ctx);
	if (ethernet(&cursor) != be16(ETH_IPV4))
		return on_miss;
	struct ipv4 *ip = network4(&cursor);
	if (!ip)
		return XDP_ABORTED;
	int match = 0;
	if (features & BY_SOURCE)
		match |= address(ip->source);
	if (features & BY_DEST)
		match |= address(ip->dest);
	if (features & BY_PORT && ip->protocol == UDP) {
		struct udp *udp = NEED(&cursor, struct udp);
		if (!udp)
			return XDP_ABORTED;
		u32 port = be16(udp->dest);
		u32 *blocked = map_lookup(&ports, &port);
		match |= blocked && *blocked;
	}
	__sync_fetch_and_add(match ? &matched : &missed, 1);
	return match ? on_match : on_miss;
}

LICENSE;
