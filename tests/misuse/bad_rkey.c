/* bad_rkey: an rkey that the peer does not have */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.wr.rdma.rkey ^= 0x5a5a00;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: remote-access */
	CHECK(wait_for(p.cq, 1) == IBV_WC_REM_ACCESS_ERR);
	close_pair(&p);
	return 0;
}
