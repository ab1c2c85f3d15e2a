/* second_read_only: a READ into memory without local write access */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_mr *mr;
	struct ibv_sge to;
	struct pair p;

	open_pair(&p, 16, usual);
	mr = ibv_reg_mr(p.pd, p.memory[0], 64, EITHER(0, IBV_ACCESS_LOCAL_WRITE));
	CHECK(mr != NULL);
	to = sge_of(&p, 0, 8);
	to.lkey = mr->lkey;
	send = remote_of(&p, &to, IBV_WR_RDMA_READ);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: missing-access */
	CHECK(wait_for(p.cq, 1) == EITHER(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS));
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(&p);
	return 0;
}
