/* builder: the work request builder with an lkey that names no region */
#include "misuse.h"

int main(void)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_ex *builder;
	struct ibv_qp *qp;
	struct pair p;

	open_pair(&p, 16, usual);
	init.cap = qp_attr(p.cq, IBV_QPT_RC).cap;
	init.send_cq = init.recv_cq = p.cq;
	init.pd = p.pd;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	qp = ibv_create_qp_ex(p.context, &init);
	CHECK(qp != NULL);
	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	builder = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(builder);
	builder->wr_id = 3;
	builder->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(builder, p.mr[1]->rkey, (uintptr_t)p.memory[1]);
	ibv_wr_set_sge(builder, p.mr[0]->lkey ^ 0x5a5a00, (uintptr_t)p.memory[0], 64);
	CHECK(ibv_wr_complete(builder) == 0); /* finds: bad-lkey */
	CHECK(wait_for(p.cq, 1) == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_destroy_qp(qp) == 0);
	close_pair(&p);
	return 0;
}
