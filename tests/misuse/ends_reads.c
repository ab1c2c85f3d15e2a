/* ends_reads: one end may send more READs than the other takes */
#include "misuse.h"

static void connect_ends(struct ibv_qp *qp, uint32_t to, int reads)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(usual);

	rts.max_rd_atomic = reads;
	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	/* The other end has another value. */
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0); /* finds: ends-reads */
}

int main(void)
{
	struct pair p;

	make_pair(&p, 8);
	connect_ends(p.qp[0], p.qp[1]->qp_num, 4);
	connect_ends(p.qp[1], p.qp[0]->qp_num, 8);
	close_pair(&p);
	return 0;
}
