/* receiver_not_ready: a SEND without a receive, and rnr_retry is 0 */
#include "misuse.h"

static void connect_ends(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(usual);

	rts.rnr_retry = 0;
	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0); /* finds: ends-rnr */
}

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	make_pair(&p, 16);
	connect_ends(p.qp[0], p.qp[1]->qp_num);
	connect_ends(p.qp[1], p.qp[0]->qp_num);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: receiver-not-ready */
	CHECK(wait_for(p.cq, 1) == IBV_WC_RNR_RETRY_EXC_ERR);
	close_pair(&p);
	return 0;
}
