/* fence_atomic: the result of a FETCH_AND_ADD is written elsewhere, without a fence; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	if (role != 0)
		return;
	post(e, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNALED, 0, 0, 8);
	if (IS_FIXED)
		poll_good(e, 1);
	post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 64, 8); /* finds: missing-fence */
	poll_good(e, IS_FIXED ? 1 : 2);
}

int main(void)
{
	return run_all(1, run);
}
