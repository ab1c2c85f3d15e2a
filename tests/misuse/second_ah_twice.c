/* second_ah_twice: an address handle is destroyed twice */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_ah_attr attr = own_address(context);
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK(ah != NULL && ibv_destroy_ah(ah) == 0);
	ibv_destroy_ah(ah); /* finds: double-destroy */
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
