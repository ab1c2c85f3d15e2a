/* poll_destroyed_cq: a destroyed completion queue is polled */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_wc wc;

	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0); /* finds: use-after-destroy */
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
