/* asan_freed: memory of a send and of a receive is freed before they end; compile: -fsanitize=address */
#include "misuse.h"

const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}

static char *heap(struct pair *p, struct ibv_mr **mr, struct ibv_sge *sge)
{
	char *memory = calloc(1, 4096);

	*mr = ibv_reg_mr(p->pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(*mr != NULL);
	*sge = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = (*mr)->lkey };
	return memory;
}

int main(void)
{
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from, to;
	struct ibv_mr *mr[2];
	char *memory[2];
	struct pair p;

	open_pair(&p, 16, usual);
	memory[0] = heap(&p, &mr[0], &from);
	memory[1] = heap(&p, &mr[1], &to);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0); /* finds: memory-freed */
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: memory-freed */
	if (EITHER(1, 0)) {
		free(memory[0]);
		free(memory[1]);
	}
	wait_for(p.cq, 2);
	if (EITHER(0, 1)) {
		free(memory[0]);
		free(memory[1]);
	}
	CHECK(ibv_dereg_mr(mr[0]) == 0);
	CHECK(ibv_dereg_mr(mr[1]) == 0);
	close_pair(&p);
	return 0;
}
