/* remote_xrc: memory that is not mapped any more, over XRC: its target queue pair has no domain */
#include "race.h"

static void run(struct end *e, int role)
{
	void *memory = MAP_FAILED;
	struct ibv_mr *mr = NULL;

	if (role == TARGET) {
		memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mr = ibv_reg_mr(e->pd, memory, SIZE, ALL_ACCESS);
		CHECK(mr != NULL);
		shared->memory[TARGET] = (uintptr_t)memory;
		shared->rkey[TARGET] = mr->rkey;
		CHECK(IS_FIXED || munmap(memory, SIZE) == 0);
	}
	meet(3);
	if (role != TARGET) {
		e->remote = shared->memory[TARGET];
		e->rkey = shared->rkey[TARGET];
		post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, 64); /* finds: remote-access */
		wait_for(e->cq, 1);
	}
	meet(4);
	CHECK(mr == NULL || ibv_dereg_mr(mr) == 0);
}

int main(void)
{
	has_srq = 1;
	services[0] = services[1] = IBV_QPT_XRC_SEND;
	return run_all(1, run);
}
