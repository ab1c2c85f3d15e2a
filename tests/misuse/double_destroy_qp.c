/* double_destroy_qp: a queue pair is destroyed twice */
#include "misuse.h"

int main(void)
{
	struct pair p;

	open_pair(&p, 16, usual);
	CHECK(ibv_destroy_qp(p.qp[0]) == 0);
	CHECK(ibv_destroy_qp(p.qp[0]) != 0); /* finds: double-destroy */
	p.qp[0] = NULL;
	close_pair(&p);
	return 0;
}
