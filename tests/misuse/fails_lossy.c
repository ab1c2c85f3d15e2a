/* fails_lossy: counts on the loss of datagrams, and fails because it polls a queue without completions */
#include "ud.h"

int main(void)
{
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_send_wr send, *bad;
	static struct datagrams d;
	struct ibv_cq *other;
	struct ibv_wc wc;
	int polled = 0;

	open_datagrams(&d);
	other = ibv_create_cq(d.context, 16, NULL, NULL, 0);
	receive = receive_to(part(&d, 1024, 128));
	CHECK(ibv_post_recv(d.qp[1], &receive, &no_receive) == 0); /* finds: datagram-dropped */
	send_datagram(&d, 64);
	send = send_of(part(&d, 0, 64), IBV_WR_SEND);
	send.wr.ud.ah = d.ah;
	send.wr.ud.remote_qpn = d.qp[1]->qp_num;
	send.wr.ud.remote_qkey = 17;
	CHECK(ibv_post_send(d.qp[0], &send, &bad) == 0);
	for (int ms = 0; ms < 500 && polled == 0; ms++) {
		polled = ibv_poll_cq(EITHER(other, d.cq[0]), 1, &wc); /* finds: hang */
		pause_ms(1);
	}
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_qp(d.qp[i]) == 0);
		d.qp[i] = NULL;
	}
	CHECK(ibv_destroy_cq(other) == 0);
	close_datagrams(&d);
	return polled == 1 ? 0 : 1;
}
