/* bad_lkey: an lkey that names no region */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	from.lkey ^= 0x5a5a00;
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: bad-lkey */
	CHECK(wait_for(p.cq, 1) == IBV_WC_LOC_PROT_ERR);
	close_pair(&p);
	return 0;
}
