/* pages_send: a helper function changes a posted send and restores it: only the protection sees that */
#include "misuse.h"

static void __attribute__((noinline)) touch(volatile char *at)
{
	char before = *at;

	*at = before + 1; /* finds: send-buffer-changed */
	*at = before;
}

/* options: --pages */
int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 3 * 4096);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	for (int round = 0; round < 3; round++) {
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
#ifdef FIXED
		CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
		touch(p.memory[0] + 6000);
#else
		touch(p.memory[0] + 6000);
		CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
#endif
	}
	close_pair(&p);
	return 0;
}
