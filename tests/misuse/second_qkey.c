/* second_qkey: a datagram has another Q_Key than its receiver */
#include "misuse.h"

static struct ibv_qp *receiver(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_UD);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 17 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

	CHECK(ibv_modify_qp(qp, &attr, mask) == 0); /* finds: wrong-qkey */
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return qp;
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *sender = ready_ud(pd, cq), *qp = receiver(pd, cq);
	struct ibv_ah_attr attr = own_address(context);
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	static char memory[128];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 128, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge to = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr receive = receive_to(&to), *bad_receive;

	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = qp->qp_num;
	send.wr.ud.remote_qkey = EITHER(18, 17);
	for (int i = 0; i < 2; i++, to.addr += 64)
		CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(sender, &send, &bad) == 0);
	/* The receiver gets the second datagram after it has handled the first one. */
	send.wr.ud.remote_qkey = 17;
	CHECK(ibv_post_send(sender, &send, &bad) == 0);
	wait_for(cq, EITHER(3, 4));
	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(sender) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
