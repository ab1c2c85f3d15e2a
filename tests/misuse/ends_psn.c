/* ends_psn: the first PSN of one end is not the one that the other end expects */
#include "misuse.h"

static void connect_ends(struct ibv_qp *qp, uint32_t to, int psn)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(usual);

	rtr.rq_psn = 100;
	rts.sq_psn = psn;
	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	/* The other end has another value. */
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0); /* finds: ends-psn */
}

int main(void)
{
	struct pair p;

	make_pair(&p, 8);
	connect_ends(p.qp[0], p.qp[1]->qp_num, 100);
	connect_ends(p.qp[1], p.qp[0]->qp_num, 200);
	close_pair(&p);
	return 0;
}
