/* Functions that helpers call, tail calls, maps of maps, queues, Bloom filters and spin locks. */
#include "xdp.h"

enum { PROG_ARRAY = 3, ARRAY_OF_MAPS = 12, QUEUE = 22, STACK = 23, BLOOM_FILTER = 30 };

static long (*tail_call)(void *ctx, void *programs, u32 index) = (void *)12;
static long (*map_push)(void *map, const void *value, u64 flags) = (void *)87;
static long (*map_pop)(void *map, void *value) = (void *)88;
static long (*map_peek)(void *map, void *value) = (void *)89;
static void (*spin_lock)(void *lock) = (void *)93;
static void (*spin_unlock)(void *lock) = (void *)94;
static long (*for_each)(void *map, void *callback, void *ctx, u64 flags) = (void *)164;
static long (*loop)(u32 count, void *callback, void *ctx, u64 flags) = (void *)181;
static long (*compare_text)(const char *text, u32 len, const char *other) = (void *)182;

struct bpf_spin_lock {
	u32 val;
};

struct locked {
	struct bpf_spin_lock lock;
	u32 packets;
	u64 bytes;
};

MAP(results, ARRAY, u32, u64, 8);
MAP(sizes, HASH, u32, u64, 64);
MAP(totals, ARRAY, u32, struct locked, 1);
MAP(first_inner, ARRAY, u32, u64, 4);
MAP(second_inner, ARRAY, u32, u64, 4);

struct {
	UINT(type, QUEUE);
	UINT(max_entries, 3);
	TYPE(value, u32);
} lengths SEC(".maps");

struct {
	UINT(type, STACK);
	UINT(max_entries, 3);
	TYPE(value, u32);
} newest SEC(".maps");

struct {
	UINT(type, BLOOM_FILTER);
	UINT(max_entries, 1000);
	TYPE(value, u32);
} seen SEC(".maps");

struct inner {
	UINT(type, ARRAY);
	TYPE(key, u32);
	TYPE(value, u64);
	UINT(max_entries, 4);
};

struct {
	UINT(type, ARRAY_OF_MAPS);
	TYPE(key, u32);
	UINT(max_entries, 3);
	struct inner *values[];
} by_parity SEC(".maps") = { .values = { (void *)&first_inner, (void *)&second_inner } };

int last(struct xdp_md *ctx);
int middle(struct xdp_md *ctx);

struct {
	UINT(type, PROG_ARRAY);
	UINT(max_entries, 4);
	UINT(key_size, 4);
	int (*values[])(struct xdp_md *ctx);
} steps SEC(".maps") = { .values = { [1] = middle, [3] = last } };

NOINLINE void count(u32 key, u64 add)
{
	u64 *value = map_lookup(&results, &key);
	if (value)
		__sync_fetch_and_add(value, add);
}

struct sum {
	u64 sum;
	u32 stop;
};

NOINLINE long add_number(u32 index, struct sum *sum)
{
	sum->sum += index * 3;
	return index >= sum->stop;
}

NOINLINE long add_entry(void *map, u32 *key, u64 *value, struct sum *sum)
{
	sum->sum += *key * *value;
	*value += 1;
	return 0;
}

/* A loop within a callback of a loop. */
NOINLINE long nested(u32 index, struct sum *sum)
{
	sum->sum += loop(index, add_number, sum, 0);
	return 0;
}

SEC("xdp") int callbacks(struct xdp_md *ctx)
{
	u32 len = ctx->data_end - ctx->data, key = len & 31;
	struct sum sum = { .stop = len & 15 };
	long done = loop(len & 63, add_number, &sum, 0);
	count(0, done);
	count(1, sum.sum);
	map_update(&sizes, &key, &(u64){ len }, NOEXIST);
	struct sum entries = {};
	count(2, for_each(&sizes, add_entry, &entries, 0));
	count(3, entries.sum);
	struct sum inner = { .stop = 1000 };
	count(4, loop(5, nested, &inner, 0));
	count(5, inner.sum);
	return loop(1, add_number, &sum, 1) < 0 && sum.sum & 1 ? XDP_DROP : XDP_PASS;
}

SEC("xdp") int queues(struct xdp_md *ctx)
{
	u32 len = ctx->data_end - ctx->data, value = 7, other = 7;
	int known = map_peek(&seen, &len) == 0;
	map_push(&seen, &len, 0);
	count(0, map_peek(&seen, &len) == 0);
	count(1, map_push(&lengths, &len, 0) == 0);
	map_push(&newest, &len, EXIST);
	if (len & 1 && map_pop(&lengths, &value) == 0)
		count(2, value);
	if (map_peek(&newest, &other) == 0)
		count(3, other);
	if (len & 2)
		count(4, map_pop(&newest, &other) == 0 ? other : 0);
	return known ? XDP_TX : XDP_PASS;
}

SEC("xdp") int inner_maps(struct xdp_md *ctx)
{
	u32 len = ctx->data_end - ctx->data, outer = len % 3, key = len & 3;
	void *map = map_lookup(&by_parity, &outer);
	if (!map)
		return XDP_DROP;
	u64 *value = map_lookup(map, &key);
	if (!value)
		return XDP_ABORTED;
	*value += len;
	struct locked *total = map_lookup(&totals, &(u32){ 0 });
	if (!total)
		return XDP_ABORTED;
	spin_lock(&total->lock);
	total->packets++;
	total->bytes += len;
	spin_unlock(&total->lock);
	static const char text[] = "short";
	char copy[6] = "shor";
	copy[4] = len & 1 ? 't' : 'e';
	return compare_text(copy, sizeof(copy), text) ? XDP_PASS : XDP_TX;
}

SEC("xdp") int last(struct xdp_md *ctx)
{
	count(7, 1);
	return XDP_TX;
}

SEC("xdp") int middle(struct xdp_md *ctx)
{
	count(6, 1);
	tail_call(ctx, &steps, 3);
	return XDP_ABORTED;
}

SEC("xdp") int chain(struct xdp_md *ctx)
{
	u32 len = ctx->data_end - ctx->data;
	tail_call(ctx, &steps, len & 3);
	count(5, 1);
	/* No such entry. */
	tail_call(ctx, &steps, 17);
	return XDP_PASS;
}

LICENSE;
