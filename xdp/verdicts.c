/* One program for each verdict that needs no further data. */
#include "xdp.h"

SEC("xdp") int aborted(struct xdp_md *ctx)
{
	return XDP_ABORTED;
}

SEC("xdp") int drop(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("xdp") int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp") int tx(struct xdp_md *ctx)
{
	return XDP_TX;
}

/* No verdict has this number. */
SEC("xdp") int unknown(struct xdp_md *ctx)
{
	return 0x1234;
}

LICENSE;
