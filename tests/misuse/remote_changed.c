/* remote_changed: ibv_rereg_mr takes the right away that the request needs */
#include "misuse.h"

int main(void)
{
	int access = EITHER(IBV_ACCESS_REMOTE_READ, ALL_ACCESS);
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_mr *mr;
	struct pair p;

	open_pair(&p, 16, usual);
	mr = ibv_reg_mr(p.pd, p.memory[1], SIZE / 2, ALL_ACCESS);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p.memory[1], SIZE, 0) == 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access) == 0); /* finds: remote-access */
	from = sge_of(&p, 0, SIZE);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	wait_for(p.cq, 1);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(&p);
	return 0;
}
