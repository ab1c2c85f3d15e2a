/* race_atomic_write: a counter is reset by a WRITE while a FETCH_AND_ADD changes it; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	for (int i = 0; role == 0 && i < ROUNDS; i++) {
		for (int k = 0; k < BURST; k++)
			post(e, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNALED, 0, 8, 8);
		if (IS_FIXED)
			post(e, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNALED, 64, 8, 8);
		else
			post(e, 1, IBV_WR_RDMA_WRITE, SIGNALED, 64, 8, 8); /* finds: race-remote */
		poll_good(e, BURST + 1);
	}
}

int main(void)
{
	return run_all(1, run);
}
