/* receive_echo: the next receive goes to the buffer that is still being sent; options: --strict */
#include "misuse.h"

int main(void)
{
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from, to;
	struct pair p;

	open_pair(&p, 64, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	to = sge_of(&p, 0, 64);
	to.addr += EITHER(32, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[0], &receive, &no_receive) == 0); /* finds: receive-overlap */
	wait_for(p.cq, 1);
	close_pair(&p);
	return 0;
}
