/* leaked_srq: a shared receive queue that is never destroyed */
#include "misuse.h"

int main(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context); /* finds: leaked-pd */

	CHECK(ibv_create_srq(pd, &attr) != NULL); /* finds: leaked-srq */
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
