/* race_uc: a READ after the completion of a WRITE over UC, which tells nothing; options: --races */
#include "race.h"

/* With -DFIXED the target answers when it has polled the receive of a WRITE with immediate data. */
static void run(struct end *e, int role)
{
	post_receive(e, role == TARGET ? 0 : 1);
	meet(3);
	if (role == TARGET) {
		if (IS_FIXED) {
			poll_good(e, 1);
			post(e, 1, IBV_WR_SEND, SIGNALED, 0, 0, 8);
			poll_good(e, 1);
		}
		meet(4);
		return;
	}
	post(e, 0, IS_FIXED ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, 64);
	poll_good(e, IS_FIXED ? 2 : 1);
	post(e, 1, IBV_WR_RDMA_READ, SIGNALED, 1024, 0, 64); /* finds: unordered-remote */
	poll_good(e, 1);
	meet(4);
}

int main(void)
{
	services[0] = IBV_QPT_UC;
	return run_all(1, run);
}
