/* wrong_cq: polls a completion queue that is not that of the queue pair, until its alarm ends it */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_cq *other;
	struct ibv_sge from;
	struct ibv_wc wc;
	struct pair p;

	open_pair(&p, 16, usual);
	other = ibv_create_cq(p.context, 16, NULL, NULL, 0);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	alarm(1);
	while (ibv_poll_cq(EITHER(other, p.cq), 1, &wc) == 0) /* finds: hang */
		;
	CHECK(ibv_destroy_cq(other) == 0);
	close_pair(&p);
	return 0;
}
