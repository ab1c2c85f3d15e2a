/* Programs for both directions of a device in one file: XDP for received packets, tc for transmitted ones. */
#include "xdp.h"

MAP(seen, ARRAY, u32, u64, 2);

static __attribute__((noinline)) void count(u32 direction)
{
	u64 *packets = map_lookup(&seen, &direction);
	if (packets)
		__sync_fetch_and_add(packets, 1);
}

SEC("xdp") int received(struct xdp_md *ctx)
{
	count(0);
	return XDP_PASS;
}

struct __sk_buff;

SEC("tcx/egress") int sent(struct __sk_buff *skb)
{
	count(1);
	return 0;
}

LICENSE;
