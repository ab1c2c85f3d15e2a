/* fence_send: a SEND of what a READ brings, without a fence; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	int flags = SIGNALED | (IS_FIXED ? IBV_SEND_FENCE : 0);

	if (role == TARGET)
		post_receive(e, 0);
	meet(3);
	if (role == TARGET)
		return poll_good(e, 1);
	post(e, 0, IBV_WR_RDMA_READ, 0, 0, 0, 64);
	post(e, 0, IBV_WR_SEND, flags, 32, 0, 64); /* finds: missing-fence */
	poll_good(e, 1);
}

int main(void)
{
	return run_all(1, run);
}
