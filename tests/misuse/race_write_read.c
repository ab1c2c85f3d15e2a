/* race_write_read: a READ through another queue pair than the WRITE before; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	for (int i = 0; role == 0 && i < ROUNDS; i++) {
		for (int k = 0; k < BURST; k++)
			post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, SIZE / 2);
		/* One queue pair executes in order. */
		post(e, IS_FIXED ? 0 : 1, IBV_WR_RDMA_READ, SIGNALED, SIZE / 2, 0, 8); /* finds: race-remote */
		poll_good(e, BURST + 1);
	}
}

int main(void)
{
	return run_all(1, run);
}
