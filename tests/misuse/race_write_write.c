/* race_write_write: WRITEs of two queue pairs to the same memory; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	for (int i = 0; role == 0 && i < ROUNDS; i++) {
		for (int k = 0; k < BURST; k++)
			post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, SIZE);
		if (IS_FIXED)
			poll_good(e, BURST);
		post(e, 1, IBV_WR_RDMA_WRITE, SIGNALED, 64, 32, 64); /* finds: race-remote */
		poll_good(e, IS_FIXED ? 1 : BURST + 1);
	}
}

int main(void)
{
	return run_all(1, run);
}
