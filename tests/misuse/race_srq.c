/*
 * race_srq: a SEND of the second process takes a receive with memory that the first one WRITEs;
 * options: --races
 */
#include "race.h"

/* With -DFIXED the receive has memory of its own. */
static void run(struct end *e, int role)
{
	for (int i = 0; i < ROUNDS; i++) {
		if (role == TARGET)
			post_receive(e, 1);
		meet(3 + 2 * i);
		for (int k = 0; role == 0 && k < BURST; k++)
			post(e, 0, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, IS_FIXED ? RECEIVE : SIZE);
		meet(4 + 2 * i);
		if (role == 1)
			post(e, 1, IBV_WR_SEND, SIGNALED, 0, 0, 16); /* finds: race-remote */
		poll_good(e, role == 0 ? BURST : 1);
	}
}

int main(void)
{
	has_srq = 1;
	return run_all(2, run);
}
