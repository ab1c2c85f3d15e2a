/* queue_full_unsignaled: no send is signaled, so the queue never drains */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	int refused = 0;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.send_flags = 0;
	for (int i = 0; i < 1000 && !refused; i++)
		refused = ibv_post_send(p.qp[0], &send, &bad); /* finds: queue-full-unsignaled */
	CHECK(refused != 0);
	close_pair(&p);
	return 0;
}
