/* queue_unpolled: the program knows from memory that its WRITEs are done, and polls no completion */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 1);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.send_flags = 0;
	for (int i = 1; i <= 20; i++) {
		p.memory[0][0] = (char)i;
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: queue-full-unsignaled */
		while (*(volatile char *)p.memory[1] != (char)i)
			;
	}
	close_pair(&p);
	return 0;
}
