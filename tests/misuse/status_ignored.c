/* status_ignored: the opcode of a flushed completion decides what it is for */
#include "misuse.h"

/* needs: debug registers */
int main(void)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr receive, *bad;
	volatile struct ibv_wc wc;
	struct ibv_sge to;
	struct pair p;

	open_pair(&p, 16, usual);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad) == 0);
	CHECK(ibv_modify_qp(p.qp[1], &error, IBV_QP_STATE) == 0);
	while (ibv_poll_cq(p.cq, 1, (struct ibv_wc *)&wc) == 0) /* finds: status-ignored */
		;
#ifdef FIXED
	if (wc.status != IBV_WC_SUCCESS)
		printf("failed: %s\n", ibv_wc_status_str(wc.status));
	else
#endif
	printf("%s\n", wc.opcode == IBV_WC_RECV ? "a message" : "a send");
	close_pair(&p);
	return 0;
}
