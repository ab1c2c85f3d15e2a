/* Adaptations to the kernel's structures, of each kind: fields, elements, bit fields, types, enumerators. */
#include "../../../../../xdp/xdp.h"

#define KERNEL __attribute__((preserve_access_index))

enum state { STATE_IDLE = 3, STATE_BUSY = 7 };

struct inner {
	u32 first;
	struct {
		u16 second[4];
	};
} KERNEL;

struct device {
	u64 number;
	enum state state;
	u32 low : 3, high : 11;
	struct inner parts[5];
	struct device *next;
} KERNEL;

SEC("xdp") int adapted(struct xdp_md *ctx)
{
	struct device *device = (void *)(long)ctx->data;
	if (ctx->data + sizeof(*device) > ctx->data_end)
		return XDP_PASS;
	u64 sum = device->number + device->parts[3].second[2] + device->state;
	sum += __builtin_preserve_field_info(device->low, 1) + __builtin_preserve_field_info(device->high, 4);
	sum += __builtin_preserve_field_info(device->high, 2) + __builtin_preserve_field_info(device->state, 3);
	sum += __builtin_preserve_field_info(device->low, 0) + __builtin_preserve_field_info(device->low, 5);
	sum += __builtin_preserve_type_info(*(struct inner *)0, 1);
	sum += __builtin_preserve_type_info(*(struct device *)0, 0);
	sum += __builtin_preserve_enum_value(*(typeof(enum state) *)STATE_BUSY, 1);
	sum += __builtin_btf_type_id(*(struct inner *)0, 0);
	return sum & 1 ? XDP_DROP : XDP_PASS;
}

LICENSE;
