/* correct_fence: sends what a READ and an atomic bring, with a fence, and reads into memory that was sent */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge at;
	struct pair p;

	open_pair(&p, 16, usual);
	memset(p.memory[1], 7, 64);
	at = sge_of(&p, 0, 64);
	send = remote_of(&p, &at, IBV_WR_RDMA_READ);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	send = remote_of(&p, &at, IBV_WR_RDMA_WRITE);
	send.send_flags |= IBV_SEND_FENCE;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	at.length = 8;
	send = remote_of(&p, &at, IBV_WR_ATOMIC_FETCH_AND_ADD);
	send.wr.atomic.compare_add = 1;
	send.wr.atomic.remote_addr = (uintptr_t)p.memory[1];
	send.wr.atomic.rkey = p.mr[1]->rkey;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	send = remote_of(&p, &at, IBV_WR_RDMA_WRITE);
	send.send_flags |= IBV_SEND_FENCE;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	memset(p.memory[0], 9, 64);
	at.length = 64;
	send = remote_of(&p, &at, IBV_WR_RDMA_WRITE);
	send.wr.rdma.remote_addr += 64;
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	send = remote_of(&p, &at, IBV_WR_RDMA_READ);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	close_pair(&p);
	return 0;
}
