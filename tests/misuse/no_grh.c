/* no_grh: an address handle without a global route, as on InfiniBand */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_ah_attr to = { .dlid = 1, .port_num = 1 };

	CHECK(ibv_create_ah(pd, &to) == NULL); /* finds: refused-call */
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
