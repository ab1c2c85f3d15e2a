/* post_after_destroy: a send is posted to a destroyed queue pair */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	CHECK(ibv_destroy_qp(p.qp[0]) == 0);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) != 0); /* finds: use-after-destroy */
	p.qp[0] = NULL;
	close_pair(&p);
	return 0;
}
