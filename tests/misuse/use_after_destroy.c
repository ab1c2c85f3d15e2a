/* use_after_destroy: a queue pair is asked for its state after its end */
#include "misuse.h"

int main(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct pair p;

	open_pair(&p, 16, usual);
	CHECK(ibv_destroy_qp(p.qp[0]) == 0);
	CHECK(ibv_query_qp(p.qp[0], &attr, IBV_QP_STATE, &init) != 0); /* finds: use-after-destroy */
	p.qp[0] = NULL;
	close_pair(&p);
	return 0;
}
