/* target_read: a pipe tells that a WRITE was posted, and another thread reads its target at once */
#include "misuse.h"

#include <pthread.h>

static struct pair p;
static int ends[2];

/* options: --pages=targets */
static void *reader(void *unused)
{
	char told;

	CHECK(read(ends[0], &told, 1) == 1);
	printf("%d\n", p.memory[1][40000]); /* finds: target-used-early */
	return unused;
}

int main(void)
{
	struct ibv_send_wr write_wr, *bad;
	struct ibv_sge from;
	pthread_t thread;

	open_pair(&p, 16, usual);
	memset(p.memory[0], 7, SIZE);
	CHECK(pipe(ends) == 0 && pthread_create(&thread, NULL, reader, NULL) == 0);
	pause_ms(50);
	from = sge_of(&p, 0, SIZE);
	write_wr = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &write_wr, &bad) == 0);
	CHECK(EITHER(0, wait_for(p.cq, 1)) == IBV_WC_SUCCESS);
	CHECK(write(ends[1], "", 1) == 1);
	CHECK(EITHER(wait_for(p.cq, 1), 0) == IBV_WC_SUCCESS);
	CHECK(pthread_join(thread, NULL) == 0);
	close(ends[0]);
	close(ends[1]);
	close_pair(&p);
	return 0;
}
