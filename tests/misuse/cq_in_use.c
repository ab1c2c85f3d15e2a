/* cq_in_use: a completion queue is destroyed before its queue pairs */
#include "misuse.h"

int main(void)
{
	struct pair p;

	open_pair(&p, 16, usual);
	CHECK(ibv_destroy_cq(p.cq) != 0); /* finds: object-in-use */
	close_pair(&p);
	return 0;
}
