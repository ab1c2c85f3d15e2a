/* reg_unmapped: the memory of a region is not mapped */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	void *nowhere = (void *)4096;

	CHECK(ibv_reg_mr(pd, nowhere, 64, IBV_ACCESS_LOCAL_WRITE) == NULL); /* finds: refused-call */
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
