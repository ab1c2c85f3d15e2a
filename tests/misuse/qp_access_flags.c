/* qp_access_flags: the region of the peer may be written, its queue pair gives no access */
#include "misuse.h"

int main(void)
{
	struct ibv_qp_attr none = { .qp_state = IBV_QPS_INIT, .qp_access_flags = EITHER(0, ALL_ACCESS) };
	struct ibv_send_wr send, *bad;
	int mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS;
	struct ibv_sge from;
	struct pair p;

	make_pair(&p, 16);
	CHECK(ibv_modify_qp(p.qp[1], &none, mask) == 0); /* finds: remote-invalid-request */
	connect_qp(p.qp[0], p.qp[1]->qp_num, usual);
	connect_qp(p.qp[1], p.qp[0]->qp_num, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	wait_for(p.cq, 1);
	close_pair(&p);
	return 0;
}
