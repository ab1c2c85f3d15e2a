/* leaked_mr: a region that is never deregistered, so its domain and device stay, too */
#include "misuse.h"

int main(void)
{
	static char memory[4096];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context); /* finds: leaked-pd */
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), 0); /* finds: leaked-mr */

	CHECK(mr != NULL);
#ifdef FIXED
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
#endif
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
