/* ended_by_term: polls a queue that is not that of the queue pair, until SIGTERM ends it; exit: 143 */
#include "misuse.h"

#include <signal.h>

/* Of the corrected program: its own handler stays in force. */
static void end(int signal)
{
	_exit(signal == SIGTERM ? 0 : 1);
}

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_cq *other;
	struct ibv_sge from;
	struct ibv_wc wc;
	struct pair p;

	open_pair(&p, 16, usual);
	if (EITHER(0, 1))
		CHECK(signal(SIGTERM, end) != SIG_ERR);
	other = ibv_create_cq(p.context, 16, NULL, NULL, 0);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	for (int ms = 0; ibv_poll_cq(other, 1, &wc) == 0; ms++) { /* finds: hang */
		pause_ms(1);
		if (ms == 400)
			CHECK(kill(getpid(), SIGTERM) == 0);
	}
	return 1;
}
