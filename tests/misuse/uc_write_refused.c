/* uc_write_refused: a WRITE over UC to a region that may not be written; the sender is not told */
#include "misuse.h"

static struct ibv_qp *make_uc(struct pair *p)
{
	struct ibv_qp_init_attr init = qp_attr(p->cq, IBV_QPT_UC);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(p->pd, &init);

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	CHECK(qp != NULL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	return qp;
}

static void connect_uc(struct ibv_qp *qp, struct ibv_qp *to)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to->qp_num), rts = rts_of(usual);

	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) == 0);
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

int main(void)
{
	int access = EITHER(IBV_ACCESS_REMOTE_READ, ALL_ACCESS);
	struct ibv_qp *from_qp, *to_qp;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_mr *mr;
	struct pair p;

	open_pair(&p, 16, usual);
	from_qp = make_uc(&p);
	to_qp = make_uc(&p);
	connect_uc(from_qp, to_qp);
	connect_uc(to_qp, from_qp);
	mr = ibv_reg_mr(p.pd, p.memory[1], SIZE, access); /* finds: refused-request */
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(from_qp, &send, &bad) == 0);
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	pause_ms(50);
	CHECK(ibv_destroy_qp(from_qp) == 0 && ibv_destroy_qp(to_qp) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(&p);
	return 0;
}
