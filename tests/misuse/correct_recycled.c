/* correct_recycled: both queue pairs go through RESET, one after the other, and get other PSNs */
#include "misuse.h"

/* From RESET to RTS, with this PSN in both directions. */
static void connect_again(struct ibv_qp *qp, uint32_t to, uint32_t psn)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(usual);

	rtr.rq_psn = rts.sq_psn = psn;
	init_qp(qp);
	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0);
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

int main(void)
{
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_send_wr send, *bad_send;
	struct ibv_sge from, to;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	for (uint32_t psn = 100; psn < 103; psn++) {
		/* Without a receive: RESET discards it. */
		send = send_of(&from, IBV_WR_SEND);
		CHECK(ibv_post_send(p.qp[0], &send, &bad_send) == 0);
		for (int side = 0; side < 2; side++) {
			reset(p.qp[side]);
			connect_again(p.qp[side], p.qp[!side]->qp_num, psn);
		}
		/* The memory is free, and the region of the discarded SEND is used no more. */
		p.memory[0][0]++;
		CHECK(ibv_dereg_mr(p.mr[0]) == 0);
		p.mr[0] = ibv_reg_mr(p.pd, p.memory[0], SIZE, ALL_ACCESS);
		CHECK(p.mr[0] != NULL);
		from = sge_of(&p, 0, 64);
		send = send_of(&from, IBV_WR_SEND);
		CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0);
		CHECK(ibv_post_send(p.qp[0], &send, &bad_send) == 0);
		CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	}
	close_pair(&p);
	return 0;
}
