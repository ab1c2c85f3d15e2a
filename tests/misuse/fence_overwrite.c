/* fence_overwrite: a WRITE to memory that is being READ, without a fence; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	int flags = SIGNALED | (IS_FIXED ? IBV_SEND_FENCE : 0);

	if (role != 0)
		return;
	post(e, 0, IBV_WR_RDMA_READ, SIGNALED, 0, 0, 64);
	post(e, 0, IBV_WR_RDMA_WRITE, flags, 64, 0, 64); /* finds: missing-fence */
	poll_good(e, 2);
}

int main(void)
{
	return run_all(1, run);
}
