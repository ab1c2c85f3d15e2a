/* Cuts long packets, pads short ones, and stores the old length in the metadata in front of the packet. */
#include "xdp.h"

SEC("xdp") int resize(struct xdp_md *ctx)
{
	u32 len = DATA_END(ctx) - DATA(ctx);
	int delta = len > 96 ? 96 - (int)len : 64 - (int)len;
	if (delta && adjust_tail(ctx, delta))
		return XDP_ABORTED;
	if (adjust_meta(ctx, -8))
		return XDP_DROP;
	u32 *meta = DATA_META(ctx);
	if ((void *)(meta + 2) > DATA(ctx))
		return XDP_ABORTED;
	meta[0] = len;
	meta[1] = DATA_END(ctx) - DATA(ctx);
	return XDP_PASS;
}

LICENSE;
