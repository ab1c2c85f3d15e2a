/* race_unordered: 20 ms between two WRITEs of two queue pairs, and no completion; options: --races */
#include "race.h"

/* With -DFIXED the target answers: its receive tells that the WRITE is there. */
static void run(struct end *e, int role)
{
	if (IS_FIXED)
		post_receive(e, 0);
	meet(3);
	if (role == TARGET) {
		if (IS_FIXED) {
			poll_good(e, 1);
			post(e, 0, IBV_WR_SEND, SIGNALED, 0, 0, 8);
			poll_good(e, 1);
		}
		return;
	}
	post(e, 0, IBV_WR_RDMA_WRITE, 0, 0, 0, 64);
	if (IS_FIXED) {
		post(e, 0, IBV_WR_SEND, 0, 0, 0, 8);
		poll_good(e, 1);
	}
	pause_ms(20);
	post(e, 1, IBV_WR_RDMA_WRITE, SIGNALED, 0, 0, 64); /* finds: unordered-remote */
	poll_good(e, 1);
}

int main(void)
{
	return run_all(1, run);
}
