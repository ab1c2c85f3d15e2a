/* second_poll_thread: a completion queue is destroyed while another thread polls it */
#include "misuse.h"
#include <pthread.h>

static volatile int is_over;

static void *poll(void *cq)
{
	struct ibv_wc wc;

	while (!is_over)
		ibv_poll_cq(cq, 1, &wc); /* finds: use-after-destroy */
	return NULL;
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, poll, cq) == 0);
	pause_ms(50);
	CHECK(ibv_destroy_cq(cq) == 0);
	pause_ms(50);
	is_over = 1;
	pthread_join(thread, NULL);
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
