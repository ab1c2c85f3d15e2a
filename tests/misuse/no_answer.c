/* no_answer: the peer is a queue pair that does not exist */
#include "misuse.h"

int main(void)
{
	static const struct path short_timeout = { .timeout = 8, .rnr_retry = 7, .reads = 4 };
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_qp *qp;
	struct pair p;

	open_pair(&p, 16, usual);
	qp = connect_nowhere(&p, short_timeout);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(qp, &send, &bad) == 0); /* finds: no-answer */
	CHECK(wait_for(p.cq, 1) == IBV_WC_RETRY_EXC_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
	close_pair(&p);
	return 0;
}
