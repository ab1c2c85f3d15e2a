/* bad_access: remote write access without local write access */
#include "misuse.h"

int main(void)
{
	static char memory[64];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);

	CHECK(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE) == NULL); /* finds: refused-call */
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
