/* strict_reads: two READs have their results in the same memory */
#include "misuse.h"

/* options: --strict */
int main(void)
{
	struct ibv_send_wr read, *bad;
	struct ibv_sge result;
	struct pair p;

	open_pair(&p, 64, usual);
	for (int at = 0; at < 2; at++) {
		result = sge_of(&p, 0, 4096);
		result.addr += EITHER(0, 4096 * at);
		read = remote_of(&p, &result, IBV_WR_RDMA_READ);
		read.wr.rdma.remote_addr += 4096 * at;
		CHECK(ibv_post_send(p.qp[0], &read, &bad) == 0); /* finds: receive-overlap */
	}
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	close_pair(&p);
	return 0;
}
