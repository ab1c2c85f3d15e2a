/* Removes the outer VLAN tag, or adds one. */
#include "xdp.h"

SEC("xdp") int vlan_swap(struct xdp_md *ctx)
{
	struct eth *eth = DATA(ctx);
	if ((void *)(eth + 1) > DATA_END(ctx))
		return XDP_ABORTED;
	struct eth copy = *eth;
	if (eth->type == be16(ETH_VLAN) || eth->type == be16(ETH_QINQ)) {
		struct vlan *vlan = (void *)(eth + 1);
		if ((void *)(vlan + 1) > DATA_END(ctx))
			return XDP_DROP;
		copy.type = vlan->type;
		if (adjust_head(ctx, sizeof(*vlan)))
			return XDP_ABORTED;
		eth = DATA(ctx);
		if ((void *)(eth + 1) > DATA_END(ctx))
			return XDP_ABORTED;
		*eth = copy;
		return XDP_PASS;
	}
	if (adjust_head(ctx, -(int)sizeof(struct vlan)))
		return XDP_ABORTED;
	eth = DATA(ctx);
	struct vlan *vlan = (void *)(eth + 1);
	if ((void *)(vlan + 1) > DATA_END(ctx))
		return XDP_ABORTED;
	vlan->tci = be16(5);
	vlan->type = copy.type;
	copy.type = be16(ETH_VLAN);
	*eth = copy;
	return XDP_TX;
}

LICENSE;
