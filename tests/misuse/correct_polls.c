/* correct_polls: a thread polls the last byte of a WRITE, which is a finding with --strict only */
#include "misuse.h"

#include <pthread.h>

static struct pair p;

/* options: --pages=targets,shared */
static void *reader(void *unused)
{
	volatile char *last = p.memory[1] + SIZE / 2 - 1;

	while (*last == 0)
		;
	return unused;
}

int main(void)
{
	struct ibv_send_wr write_wr, *bad;
	struct ibv_sge from;
	pthread_t thread;

	open_pair(&p, 64, usual);
	memset(p.memory[0], 7, SIZE);
	from = sge_of(&p, 0, SIZE / 2);
	write_wr = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
	pause_ms(50);
	CHECK(ibv_post_send(p.qp[0], &write_wr, &bad) == 0);
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	CHECK(pthread_join(thread, NULL) == 0);
	close_pair(&p);
	return 0;
}
