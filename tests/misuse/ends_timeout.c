/* ends_timeout: one end never retransmits */
#include "misuse.h"

static void connect_ends(struct ibv_qp *qp, uint32_t to, int timeout)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(usual);

	rts.timeout = timeout;
	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	/* The other end has another value. */
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0); /* finds: ends-timeout */
}

int main(void)
{
	struct pair p;

	make_pair(&p, 8);
	connect_ends(p.qp[0], p.qp[1]->qp_num, EITHER(0, 14));
	connect_ends(p.qp[1], p.qp[0]->qp_num, 14);
	close_pair(&p);
	return 0;
}
