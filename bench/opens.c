/* Opens every device and creates a queue pair on each, prints how many milliseconds that took, and keeps them
 * until its standard input ends: processes that start together, for bench/scale. */
#include "common.h"
#include <infiniband/verbs.h>
#include <unistd.h>

int main(void)
{
	double start = now_ns();
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_device **devices = ibv_get_device_list(NULL);
	char byte;

	check(!devices || !devices[0], "devices");
	for (; *devices; devices++) {
		struct ibv_context *context = ibv_open_device(*devices);
		struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;

		check(!pd, "a device");
		attr.send_cq = attr.recv_cq = ibv_create_cq(context, 1, NULL, NULL, 0);
		check(!attr.send_cq || !ibv_create_qp(pd, &attr), "a queue pair");
	}
	printf("%.2f\n", (now_ns() - start) / 1e6);
	fflush(stdout);
	return read(0, &byte, 1) < 0;
}
