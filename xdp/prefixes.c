/* Chooses the verdict by the longest matching prefix of the source address. */
#include "xdp.h"

struct prefix {
	u32 len;
	u32 address;
};

struct {
	UINT(type, LPM_TRIE);
	TYPE(key, struct prefix);
	TYPE(value, u32);
	UINT(max_entries, 32);
	UINT(map_flags, NO_PREALLOC);
} prefixes SEC(".maps");

SEC("xdp") int by_prefix(struct xdp_md *ctx)
{
	struct cursor cursor = start(ctx);
	if (ethernet(&cursor) != be16(ETH_IPV4))
		return XDP_PASS;
	struct ipv4 *ip = NEED(&cursor, struct ipv4);
	if (!ip)
		return XDP_PASS;
	struct prefix key = { 32, ip->source };
	u32 *verdict = map_lookup(&prefixes, &key);
	return verdict ? *verdict : XDP_PASS;
}

LICENSE;
