/* race_receive: a SEND is placed in memory that WRITEs of another queue pair change; options: --races */
#include "race.h"

/* With -DFIXED the receive has memory of its own. */
static void run(struct end *e, int role)
{
	for (int i = 0; i < ROUNDS; i++) {
		if (target_receives(e, role, 1, 3 + i))
			continue;
		for (int k = 0; k < BURST; k++)
			post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, IS_FIXED ? RECEIVE : SIZE);
		post(e, 1, IBV_WR_SEND, SIGNALED, 0, 0, 16); /* finds: race-remote */
		poll_good(e, BURST + 1);
	}
}

int main(void)
{
	return run_all(1, run);
}
