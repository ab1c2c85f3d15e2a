/*
 * target_polled: a thread polls the last byte of a WRITE, a hundred times: on a busy machine the thread may
 * not run while the device executes one.
 */
#include "misuse.h"

#include <pthread.h>

enum { ROUNDS = 100 };

static struct pair p;
static volatile int seen;

/* options: --pages=targets,shared --strict */
static void *reader(void *unused)
{
	volatile char *last = p.memory[1] + SIZE / 2 - 1;

	for (int round = 1; round <= ROUNDS; round++) {
		while (*last != round) /* finds: memory-polled */
			;
		seen = round;
	}
	return unused;
}

int main(void)
{
	struct ibv_send_wr write_wr, *bad;
	struct ibv_sge from;
	pthread_t thread;

	open_pair(&p, 64, usual);
	from = sge_of(&p, 0, SIZE / 2);
	write_wr = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
	for (int round = 1; round <= ROUNDS; round++) {
		memset(p.memory[0], round, SIZE);
		CHECK(ibv_post_send(p.qp[0], &write_wr, &bad) == 0);
		CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
		while (seen < round)
			;
	}
	CHECK(pthread_join(thread, NULL) == 0);
	close_pair(&p);
	return 0;
}
