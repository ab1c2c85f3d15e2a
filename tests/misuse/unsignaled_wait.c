/* unsignaled_wait: waits for the completion of a send that is not signaled, and gives up */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_wc wc;
	struct pair p;
	int polled = 0;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.send_flags = EITHER(0, IBV_SEND_SIGNALED);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: hang */
	for (int ms = 0; ms < 600 && polled == 0; ms++) {
		polled = ibv_poll_cq(p.cq, 1, &wc);
		pause_ms(1);
	}
	close_pair(&p);
	return polled == 1 ? 0 : 2;
}
