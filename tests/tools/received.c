/* received N: receives 8 bytes into 64 of malloc, and reads byte 7, and byte N, which may be a mistake */
#include "../misuse/misuse.h"

int main(int argc, char **argv)
{
	struct ibv_send_wr send, *bad;
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_sge from, to;
	struct ibv_mr *mr;
	struct pair p;
	char *memory = malloc(64);

	CHECK(argc == 2);
	open_pair(&p, 16, usual);
	mr = ibv_reg_mr(p.pd, memory, 64, IBV_ACCESS_LOCAL_WRITE);
	to = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0);
	from = sge_of(&p, 0, 8);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	if (memory[7] != 0)
		puts("byte 7");
	if (memory[atoi(argv[1])] != 0)
		puts("byte N");
	CHECK(ibv_dereg_mr(mr) == 0);
	free(memory);
	close_pair(&p);
	return 0;
}
