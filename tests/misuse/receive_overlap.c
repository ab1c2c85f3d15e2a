/* receive_overlap: two receives with the same memory; options: --strict */
#include "misuse.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad;
	struct ibv_sge to;
	struct pair p;

	open_pair(&p, 32, usual);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad) == 0);
	to.addr += 32;
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad) == 0); /* finds: receive-overlap */
	close_pair(&p);
	return 0;
}
