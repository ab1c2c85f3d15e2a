/* race_receive_local: a WRITE sends the memory in which a SEND of its peer is placed; options: --races */
#include "race.h"

/* With -DFIXED the target polls the completions of its WRITEs first. */
static void run(struct end *e, int role)
{
	for (int i = 0; i < ROUNDS; i++) {
		if (role == TARGET) {
			post_receive(e, 0);
			for (int k = 0; k < BURST; k++)
				post(e, 1, IBV_WR_RDMA_WRITE, SIGNALED, RECEIVE, RECEIVE, SIZE / 2);
			if (IS_FIXED)
				poll_good(e, BURST);
		}
		meet(3 + 2 * i);
		if (role != TARGET)
			post(e, 0, IBV_WR_SEND, SIGNALED, 0, 0, 16); /* finds: race-local */
		poll_good(e, role != TARGET || IS_FIXED ? 1 : BURST + 1);
		meet(4 + 2 * i);
	}
}

int main(void)
{
	return run_all(1, run);
}
