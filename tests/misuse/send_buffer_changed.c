/* send_buffer_changed: the memory of a WRITE changes before its completion */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 4096);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: send-buffer-changed */
#ifdef FIXED
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	p.memory[0][100] = 'x';
#else
	p.memory[0][100] = 'x';
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
#endif
	close_pair(&p);
	return 0;
}
