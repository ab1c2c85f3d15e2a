/* stale_lkey: a region is deregistered before the send that uses it */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	CHECK(ibv_dereg_mr(p.mr[0]) == 0);
	p.mr[0] = NULL;
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: bad-lkey */
	CHECK(wait_for(p.cq, 1) == IBV_WC_LOC_PROT_ERR);
	close_pair(&p);
	return 0;
}
