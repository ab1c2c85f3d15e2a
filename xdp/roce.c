/* RoCEv2: counts packets by opcode, stores the highest PSN of each queue pair, and samples packets that
 * request an acknowledgement. */
#include "xdp.h"

struct sample {
	u32 dest_qp;
	u32 psn;
	u8 opcode;
	u8 queue;
	u8 head[14];
};

MAP(opcodes, PERCPU_ARRAY, u32, u64, 256);
MAP(psns, LRU_HASH, u32, u32, 128);
struct {
	UINT(type, RINGBUF);
	UINT(max_entries, 1 << 16);
} samples SEC(".maps");

SEC("xdp") int roce(struct xdp_md *ctx)
{
	struct cursor cursor = start(ctx);
	int type = ethernet(&cursor);
	if (type == be16(ETH_IPV4)) {
		struct ipv4 *ip = network4(&cursor);
		if (!ip || ip->protocol != UDP || ip->fragment & be16(0x3fff))
			return XDP_PASS;
	} else if (type == be16(ETH_IPV6)) {
		struct ipv6 *ip = NEED(&cursor, struct ipv6);
		if (!ip || ip->next_header != UDP)
			return XDP_PASS;
	} else {
		return XDP_PASS;
	}
	struct udp *udp = NEED(&cursor, struct udp);
	if (!udp || udp->dest != be16(ROCE_PORT))
		return XDP_PASS;
	struct bth *bth = NEED(&cursor, struct bth);
	if (!bth)
		return XDP_DROP;

	u32 opcode = bth->opcode;
	u64 *packets = map_lookup(&opcodes, &opcode);
	if (packets)
		*packets += 1;

	u32 dest_qp = be32(bth->dest_qp) & 0xffffff;
	u32 psn = be32(bth->psn) & 0xffffff;
	u32 *highest = map_lookup(&psns, &dest_qp);
	/* PSNs are ordered on a circle of 2^24. */
	if (!highest)
		map_update(&psns, &dest_qp, &psn, ANY);
	else if ((int)((psn - *highest) << 8) > 0)
		*highest = psn;

	if (bth->psn & 0x80) {
		struct sample *sample = ringbuf_reserve(&samples, sizeof(*sample), 0);
		if (!sample)
			return XDP_ABORTED;
		__builtin_memset(sample, 0, sizeof(*sample));
		sample->dest_qp = dest_qp;
		sample->psn = psn;
		sample->opcode = opcode;
		sample->queue = ctx->rx_queue_index;
		if (load_bytes(ctx, 0, sample->head, sizeof(sample->head)))
			ringbuf_discard(sample, 0);
		else
			ringbuf_submit(sample, 0);
	}
	return XDP_TX;
}

LICENSE;
