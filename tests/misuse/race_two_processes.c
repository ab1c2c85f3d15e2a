/* race_two_processes: two processes WRITE to the same memory of a third one; options: --races */
#include "race.h"

static void run(struct end *e, int role)
{
	for (int i = 0; i < ROUNDS; i++) {
		meet(3 + 2 * i);
		if (IS_FIXED && role == 1)
			meet(4 + 2 * i);
		if (role != TARGET) {
			for (int k = 0; k < BURST; k++)
				post(e, role, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, SIZE); /* finds: race-remote */
			poll_good(e, BURST);
		}
		/* The first requester has polled its completion. */
		if (IS_FIXED && role != 1)
			meet(4 + 2 * i);
	}
}

int main(void)
{
	return run_all(2, run);
}
