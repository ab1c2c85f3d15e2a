/* pages_memcpy: another thread copies to a small send on a page with other data; the program has a handler */
#include "misuse.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static sigjmp_buf after;
static volatile sig_atomic_t caught;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info, (void)context;
	caught++;
	siglongjmp(after, 1);
}

/* The program recovers from faults of its own. */
static void fault(void)
{
	volatile char *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (sigsetjmp(after, 1) == 0)
		*none = 1;
}

static void *change(void *at)
{
	char other[200];

	memset(other, 'y', sizeof(other));
	memcpy(at, other, sizeof(other)); /* finds: send-buffer-changed */
	return NULL;
}

/* options: --pages=shared */
int main(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	pthread_t thread;
	struct pair p;

	open_pair(&p, 16, usual);
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	from = sge_of(&p, 0, 256);
	from.addr += 8192;
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	/* Other data of the page. */
	p.memory[0][8192 + 300] = 'x';
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	fault();
#ifdef FIXED
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
#endif
	CHECK(pthread_create(&thread, NULL, change, p.memory[0] + 8192) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
#ifndef FIXED
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
#endif
	fault();
	CHECK(caught == 2);
	close_pair(&p);
	return 0;
}
