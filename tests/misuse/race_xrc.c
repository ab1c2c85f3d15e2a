/* race_xrc: WRITEs of two XRC queue pairs, and a SEND in memory that one of them changes; options: --races */
#include "race.h"

/* With -DFIXED each one waits for the completion of the other one. */
static void run(struct end *e, int role)
{
	for (int i = 0; i < ROUNDS; i++) {
		if (target_receives(e, role, 0, 3 + i))
			continue;
		for (int k = 0; k < BURST; k++)
			post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, SIZE);
		if (IS_FIXED)
			poll_good(e, BURST);
		post(e, 1, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, 64); /* finds: race-remote */
		post(e, 1, IBV_WR_SEND, SIGNALED, 0, 0, 16); /* finds: race-remote */
		poll_good(e, IS_FIXED ? 2 : BURST + 2);
	}
}

int main(void)
{
	has_srq = 1;
	services[0] = services[1] = IBV_QPT_XRC_SEND;
	return run_all(1, run);
}
