/* correct_flush: the opcode of a failed completion is undefined, and no known one here */
#include "misuse.h"

int main(void)
{
	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr receive, *bad;
	struct ibv_sge to;
	struct ibv_wc wc;
	struct pair p;

	open_pair(&p, 16, usual);
	to = sge_of(&p, 0, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[0], &receive, &bad) == 0);
	CHECK(ibv_modify_qp(p.qp[0], &failed, IBV_QP_STATE) == 0);
	while (ibv_poll_cq(p.cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 1 && wc.qp_num == p.qp[0]->qp_num);
	CHECK(wc.opcode == 0x5a5a5a5a && wc.byte_len == 0x5a5a5a5a && (wc.opcode & IBV_WC_RECV) == 0);
	close_pair(&p);
	return 0;
}
