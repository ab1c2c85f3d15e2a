/*
 * Prints every string and rate of the libraries. The output is the same with rdma-core's libraries and with
 * roxie's.
 */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

int main(void)
{
	for (int i = 0; i < 26; i++)
		printf("wc %d %s\n", i, ibv_wc_status_str(i));
	for (int i = 0; i < 24; i++)
		printf("event %d %s\n", i, ibv_event_type_str(i));
	for (int i = -1; i < 9; i++)
		printf("node %d %s\n", i, ibv_node_type_str(i));
	for (int i = 0; i < 9; i++)
		printf("port %d %s\n", i, ibv_port_state_str(i));
	for (int i = 0; i < 16; i++)
		printf("cm %d %s\n", i, rdma_event_str(i));
	for (int i = 0; i < 25; i++)
		printf("rate %d: %d %d\n", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i));
	for (int i = 0; i < 600; i++)
		printf("mult %d: %d\n", i, mult_to_ibv_rate(i));
	for (int i = 0; i < 1300000; i++)
		if (mbps_to_ibv_rate(i))
			printf("mbps %d: %d\n", i, mbps_to_ibv_rate(i));
	return 0;
}
