/* wrong_pd: the region is of another protection domain */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_pd *other;
	struct ibv_mr *mr;
	struct pair p;

	open_pair(&p, 16, usual);
	other = ibv_alloc_pd(p.context);
	mr = ibv_reg_mr(other, p.memory[0], SIZE, IBV_ACCESS_LOCAL_WRITE);
	from = sge_of(&p, 0, 64);
	from.lkey = mr->lkey;
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: wrong-pd */
	CHECK(wait_for(p.cq, 1) == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other) == 0);
	close_pair(&p);
	return 0;
}
