/* correct_writes: signaled WRITEs of 8 bytes from one place, 100 of them or as many as the argument says */
#include "misuse.h"

int main(int argc, char **argv)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;
	int n = argc > 1 ? atoi(argv[1]) : 100;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 8);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	for (int i = 0; i < n; i++) {
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
		CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	}
	close_pair(&p);
	return 0;
}
