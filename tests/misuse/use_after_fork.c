/* use_after_fork: a child polls the completion queue of its parent */
#include "misuse.h"

#include <sys/wait.h>

int main(void)
{
	struct pair p;
	pid_t child;

	open_pair(&p, 16, usual);
	child = fork();
	if (child == 0) {
		struct ibv_wc wc;

		ibv_poll_cq(p.cq, 1, &wc); /* finds: use-after-fork */
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, NULL, 0) == child);
	close_pair(&p);
	return 0;
}
