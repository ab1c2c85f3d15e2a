/* second_freed: memory of a posted receive is unmapped by free */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad_send;
	struct ibv_recv_wr receive, *bad;
	const size_t big = 8 << 20;
	struct ibv_sge from, to;
	struct ibv_mr *mr;
	struct pair p;
	char *heap;

	open_pair(&p, 16, usual);
	heap = malloc(big);
	mr = ibv_reg_mr(p.pd, heap, big, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr != NULL);
	to = (struct ibv_sge){ .addr = (uintptr_t)heap, .length = 64, .lkey = mr->lkey };
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad) == 0); /* finds: memory-unmapped */
	free(heap);
	from = sge_of(&p, 0, 8);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad_send) == 0); /* finds: completion-error */
	wait_for(p.cq, 2);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(&p);
	return 0;
}
