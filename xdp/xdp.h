/* The parts of the kernel's headers (linux/bpf.h, if_ether.h, ip.h, ...) that these programs need, so that
 * clang compiles them without other packages: clang -O2 -g -target bpf -c FILE.c */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define PACKED __attribute__((packed))
#define LICENSE char _license[] SEC("license") = "Dual MIT/GPL"

/* Members of a map definition. */
#define UINT(name, value) int(*name)[value]
#define TYPE(name, type) typeof(type) *name
#define MAP(name, kind, key_type, value_type, entries) \
	struct {                                           \
		UINT(type, kind);                              \
		TYPE(key, key_type);                           \
		TYPE(value, value_type);                       \
		UINT(max_entries, entries);                    \
	} name SEC(".maps")

enum { HASH = 1, ARRAY = 2, PERCPU_HASH = 5, PERCPU_ARRAY = 6, LRU_HASH = 9, LPM_TRIE = 11, DEVMAP = 14,
       CPUMAP = 16, XSKMAP = 17, DEVMAP_HASH = 25, RINGBUF = 27 };
enum { NO_PREALLOC = 1 };
enum { ANY, NOEXIST, EXIST };

enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

#define DATA(ctx) ((void *)(long)(ctx)->data)
#define DATA_END(ctx) ((void *)(long)(ctx)->data_end)
#define DATA_META(ctx) ((void *)(long)(ctx)->data_meta)

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u64 (*ktime_ns)(void) = (void *)5;
static long (*trace_printk)(const char *format, u32 size, ...) = (void *)6;
static u32 (*processor)(void) = (void *)8;
static long (*csum_diff)(void *from, u32 from_size, void *to, u32 to_size, u32 seed) = (void *)28;
static long (*adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static long (*redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*adjust_meta)(struct xdp_md *ctx, int delta) = (void *)54;
static long (*adjust_tail)(struct xdp_md *ctx, int delta) = (void *)65;
static long (*ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static void *(*ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ringbuf_submit)(void *record, u64 flags) = (void *)132;
static void (*ringbuf_discard)(void *record, u64 flags) = (void *)133;
static u64 (*buff_len)(struct xdp_md *ctx) = (void *)188;
static long (*load_bytes)(struct xdp_md *ctx, u32 offset, void *buffer, u32 len) = (void *)189;
static long (*store_bytes)(struct xdp_md *ctx, u32 offset, void *buffer, u32 len) = (void *)190;

#define be16(value) __builtin_bswap16(value)
#define be32(value) __builtin_bswap32(value)

enum { ETH_IPV4 = 0x0800, ETH_VLAN = 0x8100, ETH_QINQ = 0x88a8, ETH_IPV6 = 0x86dd };
enum { ICMP = 1, IPIP = 4, TCP = 6, UDP = 17, ICMPV6 = 58 };
enum { ROCE_PORT = 4791 };

struct eth {
	u8 dest[6];
	u8 source[6];
	u16 type;
} PACKED;

struct vlan {
	u16 tci;
	u16 type;
} PACKED;

struct ipv4 {
	u8 version_ihl;
	u8 tos;
	u16 total_len;
	u16 id;
	u16 fragment;
	u8 ttl;
	u8 protocol;
	u16 check;
	u32 source;
	u32 dest;
} PACKED;

struct ipv6 {
	u32 version_class_flow;
	u16 payload_len;
	u8 next_header;
	u8 hop_limit;
	u32 source[4];
	u32 dest[4];
} PACKED;

struct udp {
	u16 source;
	u16 dest;
	u16 len;
	u16 check;
} PACKED;

struct icmp {
	u8 type;
	u8 code;
	u16 check;
	u16 id;
	u16 sequence;
} PACKED;

struct bth {
	u8 opcode;
	u8 flags;
	u16 p_key;
	u32 dest_qp;
	u32 psn;
} PACKED;

/* Position in the headers of a packet. */
struct cursor {
	void *at;
	void *end;
};

#define NEED(cursor, type)                                   \
	({                                                       \
		type *header = (cursor)->at;                         \
		if ((void *)(header + 1) > (cursor)->end)            \
			header = 0;                                      \
		else                                                 \
			(cursor)->at = header + 1;                       \
		header;                                              \
	})

INLINE struct cursor start(struct xdp_md *ctx)
{
	return (struct cursor){ DATA(ctx), DATA_END(ctx) };
}

/* Returns the type after the Ethernet header and up to two tags, in network order, or -1 if the packet is
 * too short. */
INLINE int ethernet(struct cursor *cursor)
{
	struct eth *eth = NEED(cursor, struct eth);
	if (!eth)
		return -1;
	u16 type = eth->type;
#pragma unroll
	for (int tags = 0; tags < 2; tags++) {
		if (type != be16(ETH_VLAN) && type != be16(ETH_QINQ))
			break;
		struct vlan *vlan = NEED(cursor, struct vlan);
		if (!vlan)
			return -1;
		type = vlan->type;
	}
	return type;
}

/* Returns the IPv4 header. The cursor then points after its options. */
INLINE struct ipv4 *network4(struct cursor *cursor)
{
	struct ipv4 *ip = NEED(cursor, struct ipv4);
	if (!ip || ip->version_ihl >> 4 != 4)
		return 0;
	u32 len = (ip->version_ihl & 15) * 4;
	if (len < sizeof(*ip) || (void *)ip + len > cursor->end)
		return 0;
	cursor->at = (void *)ip + len;
	return ip;
}
