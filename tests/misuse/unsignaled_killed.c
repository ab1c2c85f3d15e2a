/* unsignaled_killed: polls for the completion of a send that is not signaled until SIGTERM; exit: 143 */
#include "misuse.h"

#include <signal.h>

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
	for (int ms = 0; polled == 0; ms++) {
		polled = ibv_poll_cq(p.cq, 1, &wc);
		pause_ms(1);
		if (ms == 1500)
			raise(SIGTERM);
	}
	close_pair(&p);
	return 0;
}
