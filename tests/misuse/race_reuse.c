/* race_reuse: a READ brings new bytes to the memory of a WRITE that has not completed; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	if (role != 0)
		return;
	post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, 64);
	pause_ms(20);
	if (IS_FIXED)
		poll_good(e, 1);
	post(e, 1, IBV_WR_RDMA_READ, SIGNALED, 0, 1024, 64); /* finds: unordered-local */
	poll_good(e, IS_FIXED ? 1 : 2);
}

int main(void)
{
	return run_all(1, run);
}
