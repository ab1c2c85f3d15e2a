/* unmapped: the memory of a region is unmapped before the send that reads it */
#include "misuse.h"

#include <sys/mman.h>

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_mr *mr;
	struct pair p;
	void *memory;

	open_pair(&p, 16, usual);
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = ibv_reg_mr(p.pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	from = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(munmap(memory, 4096) == 0);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: memory-unmapped */
	CHECK(wait_for(p.cq, 1) == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(&p);
	return 0;
}
