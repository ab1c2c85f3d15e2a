/* receiver_not_ready: a SEND without a receive, and rnr_retry is 0 */
#include "misuse.h"

int main(void)
{
	static const struct path no_retries = { .timeout = 14, .rnr_retry = 0, .reads = 4 };
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, no_retries);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: receiver-not-ready */
	CHECK(wait_for(p.cq, 1) == IBV_WC_RNR_RETRY_EXC_ERR);
	close_pair(&p);
	return 0;
}
