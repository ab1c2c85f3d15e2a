/* missing_access: a READ into a region without local write access */
#include "misuse.h"

int main(void)
{
	static char memory[64];
	struct ibv_send_wr send, *bad;
	struct ibv_sge to;
	struct ibv_mr *mr;
	struct pair p;

	open_pair(&p, 16, usual);
	mr = ibv_reg_mr(p.pd, memory, sizeof(memory), 0);
	to = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	send = remote_of(&p, &to, IBV_WR_RDMA_READ);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: missing-access */
	CHECK(wait_for(p.cq, 1) == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(&p);
	return 0;
}
