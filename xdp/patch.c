/* Copies bytes with the helpers that access all fragments. */
#include "xdp.h"

SEC("xdp.frags") int rotate(struct xdp_md *ctx)
{
	u8 head[16], tail[16];
	u64 len = buff_len(ctx);
	if (len < 64 || len > 0xffff)
		return XDP_PASS;
	if (load_bytes(ctx, 14, head, sizeof(head)) || load_bytes(ctx, len - 16, tail, sizeof(tail)))
		return XDP_ABORTED;
	if (store_bytes(ctx, 14, tail, sizeof(tail)) || store_bytes(ctx, len - 16, head, sizeof(head)))
		return XDP_DROP;
	/* An access beyond the end fails and changes nothing. */
	if (!store_bytes(ctx, len - 8, tail, sizeof(tail)))
		return XDP_ABORTED;
	return XDP_TX;
}

LICENSE;
