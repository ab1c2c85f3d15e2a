/* race_both_ends: each end sends the memory that the other one writes; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	size_t to = IS_FIXED ? SIZE / 2 : 0;

	(void)role;
	for (int i = 0; i < ROUNDS; i++) {
		meet(3 + i);
		for (int k = 0; k < BURST; k++)
			post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, to, SIZE / 2); /* finds: race-local */
		poll_good(e, BURST);
	}
}

int main(void)
{
	return run_all(1, run);
}
