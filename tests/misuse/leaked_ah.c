/* leaked_ah: address handles that are created in a loop and never destroyed */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context); /* finds: leaked-pd */
	struct ibv_ah_attr attr = own_address(context);

	for (int i = 0; i < 3; i++)
		CHECK(ibv_create_ah(pd, &attr) != NULL); /* finds: leaked-ah */
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
