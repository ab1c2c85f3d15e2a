/* race_receive_late: 20 ms after a SEND another queue pair READs where it was placed; options: --races */
#include "race.h"

/* With -DFIXED the target answers: it has polled the receive. */
static void run(struct end *e, int role)
{
	post_receive(e, 0);
	meet(3);
	if (role == TARGET) {
		if (IS_FIXED) {
			poll_good(e, 1);
			post(e, 0, IBV_WR_SEND, SIGNALED, 0, 0, 8);
		}
		meet(4);
		poll_good(e, 1);
		return;
	}
	post(e, 0, IBV_WR_SEND, 0, 0, 0, 16);
	if (IS_FIXED)
		poll_good(e, 1);
	else
		pause_ms(20);
	post(e, 1, IBV_WR_RDMA_READ, SIGNALED, 64, RECEIVE, 8); /* finds: unordered-remote */
	poll_good(e, 1);
	meet(4);
}

int main(void)
{
	return run_all(1, run);
}
