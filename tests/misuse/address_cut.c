/* address_cut: the remote address has lost its upper half in an unsigned int */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_READ);
	send.wr.rdma.remote_addr = EITHER((uint32_t)send.wr.rdma.remote_addr, send.wr.rdma.remote_addr);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: remote-access */
	wait_for(p.cq, 1);
	close_pair(&p);
	return 0;
}
