/* racer: two threads count completions in one variable without a lock */
#include "../misuse/misuse.h"
#include <pthread.h>

static int done;

static void *count(void *pair)
{
	struct pair *p = pair;
	struct ibv_wc wc;

	for (int i = 0; i < 1000; i++)
		done += ibv_poll_cq(p->cq, 1, &wc);
	return NULL;
}

int main(void)
{
	pthread_t threads[2];
	struct pair p;

	open_pair(&p, 16, usual);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, count, &p);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	close_pair(&p);
	return 0;
}
