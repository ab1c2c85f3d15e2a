/* reads_disabled: a READ on a queue pair with max_rd_atomic 0 */
#include "misuse.h"

int main(void)
{
	static const struct path no_reads = { .timeout = 14, .rnr_retry = 7, .reads = 0 };
	struct ibv_send_wr send, *bad;
	struct ibv_sge to;
	struct pair p;

	open_pair(&p, 16, no_reads);
	to = sge_of(&p, 0, 64);
	send = remote_of(&p, &to, IBV_WR_RDMA_READ);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: reads-disabled */
	CHECK(wait_for(p.cq, 1) != IBV_WC_SUCCESS);
	close_pair(&p);
	return 0;
}
