/* Redirects through maps: by queue, by source address, and with every fallback verdict. */
#include "xdp.h"

MAP(sockets, XSKMAP, u32, u32, 8);
MAP(devices, DEVMAP, u32, u32, 8);
MAP(devices_by_index, DEVMAP_HASH, u32, u32, 8);
MAP(processors, CPUMAP, u32, u32, 8);

INLINE u32 last_byte(struct xdp_md *ctx)
{
	u8 *byte = DATA(ctx) + 11;
	return (void *)(byte + 1) > DATA_END(ctx) ? 0 : *byte;
}

SEC("xdp") int to_socket(struct xdp_md *ctx)
{
	return redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

SEC("xdp") int to_device(struct xdp_md *ctx)
{
	return redirect_map(&devices, last_byte(ctx), XDP_DROP);
}

SEC("xdp") int to_device_by_index(struct xdp_md *ctx)
{
	/* Invalid flags are included. */
	return redirect_map(&devices_by_index, 1, last_byte(ctx) & 7);
}

SEC("xdp") int to_processor(struct xdp_md *ctx)
{
	return redirect_map(&processors, last_byte(ctx) % 12, XDP_TX);
}

/* Program of an entry of `processors`. */
SEC("xdp/cpumap") int on_processor(struct xdp_md *ctx)
{
	return last_byte(ctx) & 1 ? XDP_DROP : XDP_PASS;
}

/* Program of an entry of `devices`. */
SEC("xdp/devmap") int on_device(struct xdp_md *ctx)
{
	return ctx->egress_ifindex ? XDP_PASS : XDP_DROP;
}

LICENSE;
