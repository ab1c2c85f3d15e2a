/* fails_beside: one process makes a mistake, and another one fails because of it, with an open channel */
#include "misuse.h"

#include <sys/wait.h>

int main(void)
{
	pid_t child = fork();
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	int status;

	if (child == 0) {
		CHECK(ibv_create_comp_channel(context) != NULL);
		return 1;
	}
	CHECK(ibv_reg_mr(pd, NULL, 4096, 0) == NULL); /* finds: refused-call */
	CHECK(wait(&status) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
