/* srq_too_small: a receive of 16 bytes in a shared receive queue for a message of 1024 */
#include "misuse.h"

int main(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_send_wr send, *bad_send;
	struct ibv_qp_init_attr init;
	struct ibv_qp *from_qp, *qp;
	struct ibv_sge from, to;
	struct ibv_srq *srq;
	struct pair p;

	open_pair(&p, 16, usual);
	srq = ibv_create_srq(p.pd, &shared);
	init = qp_attr(p.cq, IBV_QPT_RC);
	from_qp = ibv_create_qp(p.pd, &init);
	init.srq = srq;
	qp = ibv_create_qp(p.pd, &init);
	init_qp(from_qp);
	init_qp(qp);
	connect_qp(from_qp, qp->qp_num, usual);
	connect_qp(qp, from_qp->qp_num, usual);
	to = sge_of(&p, 1, 16);
	receive = receive_to(&to);
	CHECK(ibv_post_srq_recv(srq, &receive, &bad_receive) == 0); /* finds: receive-too-small */
	from = sge_of(&p, 0, 1024);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(from_qp, &send, &bad_send) == 0); /* finds: remote-invalid-request */
	CHECK(wait_for(p.cq, 2) != IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(from_qp) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
	close_pair(&p);
	return 0;
}
