/* wild_next: a work request on the stack, of which `next` is not set */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr write_wr, wild, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	write_wr = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	memset(&wild, 0xa5, sizeof(wild));
	write_wr.next = EITHER(wild.next, NULL);
	CHECK(ibv_post_send(p.qp[0], &write_wr, &bad) == 0); /* finds: foreign-object */
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	close_pair(&p);
	return 0;
}
