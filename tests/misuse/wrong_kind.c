/* wrong_kind: a completion queue is passed as a queue pair */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);

	CHECK(ibv_destroy_qp((struct ibv_qp *)cq) != 0); /* finds: foreign-object */
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_close_device(context) == 0);
	return 0;
}
