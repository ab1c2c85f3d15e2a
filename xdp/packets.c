/* RoCEv2, for hooks on both directions of a running program: a record for each packet with its opcode and the
 * first bytes of its payload, packets and bytes by opcode, and a printed line for each connection message.
 *
 *   roxie hook samples PID --attach packets.o
 *   roxie hook map get PID opcodes */
#include "xdp.h"

enum opcode {
	RC_SEND_FIRST, RC_SEND_MIDDLE, RC_SEND_LAST, RC_SEND_LAST_IMM, RC_SEND_ONLY, RC_SEND_ONLY_IMM,
	RC_WRITE_FIRST, RC_WRITE_MIDDLE, RC_WRITE_LAST, RC_WRITE_LAST_IMM, RC_WRITE_ONLY, RC_WRITE_ONLY_IMM,
	RC_READ_REQUEST, RC_READ_FIRST, RC_READ_MIDDLE, RC_READ_LAST, RC_READ_ONLY, RC_ACK,
	UD_SEND_ONLY = 0x64,
};

/* A record of the ring buffer of the same name. */
struct packets {
	enum opcode opcode;
	u32 dest_qp;
	u32 psn;
	u32 len;
	char payload[40];
};

struct sum {
	u64 packets;
	u64 bytes;
};

MAP(opcodes, ARRAY, u32, struct sum, 256);
struct {
	UINT(type, RINGBUF);
	UINT(max_entries, 1 << 18);
} packets SEC(".maps");

/* The type of the records must be in the object. */
struct packets *unused __attribute__((unused));

/* Bytes of the headers behind the BTH. */
INLINE u32 extended(u32 opcode)
{
	switch (opcode) {
	case RC_WRITE_FIRST: case RC_WRITE_ONLY: case RC_READ_REQUEST: return 16;
	case RC_WRITE_ONLY_IMM: return 20;
	case RC_SEND_LAST_IMM: case RC_SEND_ONLY_IMM: case RC_WRITE_LAST_IMM: return 4;
	case RC_READ_FIRST: case RC_READ_LAST: case RC_READ_ONLY: case RC_ACK: return 4;
	case UD_SEND_ONLY: return 8;
	default: return 0;
	}
}

SEC("xdp") int all_packets(struct xdp_md *ctx)
{
	struct cursor cursor = start(ctx);
	if (ethernet(&cursor) != be16(ETH_IPV4))
		return XDP_PASS;
	struct ipv4 *ip = network4(&cursor);
	if (!ip || ip->protocol != UDP)
		return XDP_PASS;
	struct udp *udp = NEED(&cursor, struct udp);
	if (!udp || udp->dest != be16(ROCE_PORT))
		return XDP_PASS;
	struct bth *bth = NEED(&cursor, struct bth);
	if (!bth)
		return XDP_PASS;
	u32 opcode = bth->opcode, dest_qp = be32(bth->dest_qp) & 0xffffff, psn = be32(bth->psn) & 0xffffff;
	u32 len = buff_len(ctx);
	struct sum *sum = map_lookup(&opcodes, &opcode);
	if (sum) {
		sum->packets++;
		sum->bytes += len;
	}
	if (dest_qp == 1) {
		char format[] = "connection message, PSN %u";
		trace_printk(format, sizeof(format), psn);
	}
	struct packets *record = ringbuf_reserve(&packets, sizeof(*record), 0);
	if (!record)
		return XDP_PASS;
	__builtin_memset(record, 0, sizeof(*record));
	record->opcode = opcode;
	record->dest_qp = dest_qp;
	record->psn = psn;
	record->len = len;
	/* Ethernet, IPv4, UDP and BTH before the payload, the ICRC behind it. */
	u32 at = 14 + 20 + 8 + 12 + extended(opcode);
	if (len > at + 4) {
		u64 bytes = len - at - 4;
		/* Keeps clang from computing it again where the verifier has lost its range. */
		asm volatile("" : "+r"(bytes));
		if (bytes > 0 && bytes < sizeof(record->payload))
			load_bytes(ctx, at, record->payload, bytes);
		else
			load_bytes(ctx, at, record->payload, sizeof(record->payload) - 1);
	}
	ringbuf_submit(record, 0);
	return XDP_PASS;
}

LICENSE;
