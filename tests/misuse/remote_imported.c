/* remote_imported: the region of the key was imported, given back, and has not the right that is needed */
#include "misuse.h"

int main(void)
{
	int access = EITHER(IBV_ACCESS_REMOTE_READ, ALL_ACCESS);
	struct ibv_send_wr send, *bad;
	struct ibv_mr *mr, *import;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	mr = ibv_reg_mr(p.pd, p.memory[1], SIZE, access); /* finds: remote-access */
	import = ibv_import_mr(p.pd, mr->handle);
	CHECK(import != NULL && import->rkey == mr->rkey);
	ibv_unimport_mr(import);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	wait_for(p.cq, 1);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(&p);
	return 0;
}
