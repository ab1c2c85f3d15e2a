/* grh_as_data: the payload of a datagram is read at the start of the buffer, where the GRH area is */
#include "misuse.h"

#define GRH 40

/* needs: debug registers */
int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp *qp = ready_ud(pd, cq);
	struct ibv_ah_attr to = own_address(context);
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	char *memory = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, ALL_ACCESS);
	struct ibv_sge in = { (uintptr_t)memory, GRH + 64, mr->lkey }, out = { in.addr + 2048, 64, mr->lkey };
	struct ibv_recv_wr receive = receive_to(&in), *bad_receive;
	struct ibv_send_wr send = send_of(&out, IBV_WR_SEND), *bad;
	volatile uint32_t *number = (uint32_t *)(memory + EITHER(0, GRH));
	struct ibv_wc wc;
	int count = 0;

	*(uint32_t *)(memory + 2048) = 4711;
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = qp->qp_num;
	send.wr.ud.remote_qkey = 17;
	CHECK(ibv_post_send(qp, &send, &bad) == 0);
	while (count < 2)
		count += ibv_poll_cq(cq, 1, &wc); /* finds: grh-read-as-data */
	printf("message %u\n", *number);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	free(memory);
	return 0;
}
