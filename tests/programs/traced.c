/*
 * traced: WRITEs of 8 bytes in a process, in its child, in the program that the child executes, and again in
 * the process: 100 each. With the argument "last": only the third.
 */
#include "../misuse/misuse.h"

#include <sys/wait.h>

static void some_writes(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 8);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	for (int i = 0; i < 100; i++) {
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
		CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	}
	close_pair(&p);
}

int main(int argc, char **argv)
{
	int status;
	pid_t child;

	some_writes();
	if (argc > 1)
		return 0;
	child = fork();
	if (child == 0) {
		some_writes();
		execl(argv[0], argv[0], "last", NULL);
		_exit(1);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	some_writes();
	return 0;
}
