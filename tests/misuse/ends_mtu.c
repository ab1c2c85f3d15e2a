/* ends_mtu: the ends have different path MTUs */
#include "misuse.h"

static void connect_ends(struct ibv_qp *qp, uint32_t to, enum ibv_mtu mtu)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(usual);

	rtr.path_mtu = mtu;
	/* The other end has another value. */
	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0); /* finds: ends-path-mtu */
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0);
}

int main(void)
{
	struct pair p;

	make_pair(&p, 8);
	connect_ends(p.qp[0], p.qp[1]->qp_num, IBV_MTU_1024);
	connect_ends(p.qp[1], p.qp[0]->qp_num, IBV_MTU_512);
	close_pair(&p);
	return 0;
}
