/* target_read: a pipe tells that a WRITE was posted, and another thread reads its target at once */
#include "misuse.h"

#include <pthread.h>

/* The thread may have no CPU while the device executes a WRITE. */
#define ROUNDS 100

static struct pair p;
static int told[2], seen[2];

/* options: --pages=targets */
static void *reader(void *unused)
{
	int sum = 0;
	char byte;

	for (int i = 0; i < ROUNDS; i++) {
		CHECK(read(told[0], &byte, 1) == 1);
		sum += p.memory[1][8000 + 500 * i]; /* finds: target-used-early */
		CHECK(write(seen[1], "", 1) == 1);
	}
	printf("%d\n", sum);
	return unused;
}

int main(void)
{
	struct ibv_send_wr write_wr, *bad;
	struct ibv_sge from;
	pthread_t thread;
	char byte;

	open_pair(&p, 16, usual);
	memset(p.memory[0], 7, SIZE);
	CHECK(pipe(told) == 0 && pipe(seen) == 0 && pthread_create(&thread, NULL, reader, NULL) == 0);
	from = sge_of(&p, 0, SIZE);
	write_wr = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	for (int i = 0; i < ROUNDS; i++) {
		pause_ms(2);
		CHECK(ibv_post_send(p.qp[0], &write_wr, &bad) == 0);
		CHECK(EITHER(0, wait_for(p.cq, 1)) == IBV_WC_SUCCESS);
		CHECK(write(told[1], "", 1) == 1);
		CHECK(EITHER(wait_for(p.cq, 1), 0) == IBV_WC_SUCCESS);
		CHECK(read(seen[0], &byte, 1) == 1);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	close_pair(&p);
	return 0;
}
