/* status_ignored_stack: as status_ignored; then another function has its variable where the completion was */
#include "misuse.h"

#define OWN_FRAME __attribute__((noinline))
/* With 32 no call of a function overwrites the status. */
#define ENTRIES EITHER(1, 32)

/* needs: debug registers */
static OWN_FRAME int is_message(struct ibv_cq *cq)
{
	volatile struct ibv_wc wc[ENTRIES];

	while (ibv_poll_cq(cq, 1, (struct ibv_wc *)wc) == 0) /* finds: status-ignored */
		;
	return EITHER(wc->opcode == IBV_WC_RECV, wc->wr_id == 1);
}

/* Has its variable where the completion was. */
static OWN_FRAME int other(int number)
{
	volatile struct ibv_wc wc[ENTRIES];

	wc->opcode = number;
	wc->byte_len = number;
	return wc->opcode + wc->byte_len + EITHER((int)(wc->status = number), 0);
}

int main(void)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr receive, *bad;
	struct ibv_sge to;
	struct ibv_wc next;
	struct pair p;
	int count;

	open_pair(&p, 16, usual);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad) == 0);
	CHECK(ibv_modify_qp(p.qp[1], &error, IBV_QP_STATE) == 0);
	count = is_message(p.cq) + other(3);
	CHECK(ibv_poll_cq(p.cq, 1, &next) == 0 && count > 0);
	close_pair(&p);
	return 0;
}
