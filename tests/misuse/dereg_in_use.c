/* dereg_in_use: a region is deregistered while a SEND waits for a receive */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	CHECK(ibv_dereg_mr(p.mr[0]) == 0); /* finds: dereg-in-use */
	p.mr[0] = NULL;
	close_pair(&p);
	return 0;
}
