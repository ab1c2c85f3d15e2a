/* second_stale_rkey: a WRITE to memory that the peer has deregistered */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 8);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_dereg_mr(p.mr[1]) == 0);
	p.mr[1] = NULL;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: remote-access */
	CHECK(wait_for(p.cq, 1) == IBV_WC_REM_ACCESS_ERR);
	close_pair(&p);
	return 0;
}
