/* ud_without_grh: a UD receive without room for the 40 bytes in front of the payload */
#include "misuse.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp;
	struct ibv_sge to;
	struct pair p;

	open_pair(&p, 16, usual);
	init = qp_attr(p.cq, IBV_QPT_UD);
	qp = ibv_create_qp(p.pd, &init);
	init_qp(qp);
	to = sge_of(&p, 1, 32);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(qp, &receive, &bad) == 0); /* finds: ud-receive-without-grh */
	CHECK(ibv_destroy_qp(qp) == 0);
	close_pair(&p);
	return 0;
}
