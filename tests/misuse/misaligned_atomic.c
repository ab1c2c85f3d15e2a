/* misaligned_atomic: an atomic on an address that is no multiple of 8 */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge to;
	struct pair p;

	open_pair(&p, 16, usual);
	to = sge_of(&p, 0, 8);
	send = send_of(&to, IBV_WR_ATOMIC_FETCH_AND_ADD);
	send.wr.atomic.remote_addr = (uintptr_t)p.memory[1] + 4;
	send.wr.atomic.rkey = p.mr[1]->rkey;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: misaligned-atomic remote-invalid-request */
	CHECK(wait_for(p.cq, 1) != IBV_WC_SUCCESS);
	close_pair(&p);
	return 0;
}
