/* A hash over the packet with functions, loops and signed arithmetic, computed on a copy on the stack. */
#include "xdp.h"

enum { CHUNK = 32 };

MAP(results, ARRAY, u32, u64, 4);

NOINLINE u64 mix(u64 hash, u64 value)
{
	hash ^= value;
	hash *= 0x100000001b3;
	return hash << 23 | hash >> 41;
}

NOINLINE long scale(long value, int by)
{
	return by > 3 ? value * by - (value >> by) : -value;
}

INLINE void result(u32 index, u64 value)
{
	u64 *slot = map_lookup(&results, &index);
	if (slot)
		*slot = mix(*slot, value);
}

SEC("xdp") int digest(struct xdp_md *ctx)
{
	u64 hash = 0xcbf29ce484222325;
	u64 len = buff_len(ctx);
	long balance = 0;
	u8 chunk[CHUNK];
	for (u32 offset = 0; offset < 512; offset += CHUNK) {
		if (offset + CHUNK > len)
			break;
		if (load_bytes(ctx, offset, chunk, CHUNK))
			return XDP_ABORTED;
		for (u32 at = 0; at < CHUNK; at++) {
			hash = mix(hash, chunk[at]);
			balance += (signed char)chunk[at] >> 1;
		}
	}
	result(0, hash);
	result(1, scale(balance, (int)(hash & 7)));
	result(2, (int)hash >> 3);
	result(3, (u32)hash % 1000);
	return hash % 5;
}

LICENSE;
