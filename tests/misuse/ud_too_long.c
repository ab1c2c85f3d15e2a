/* ud_too_long: the receive has room for the payload, and not for the GRH area */
#include "ud.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad;
	static struct datagrams d;

	open_datagrams(&d);
	receive = receive_to(part(&d, 1024, EITHER(64, 104)));
	CHECK(ibv_post_recv(d.qp[1], &receive, &bad) == 0); /* finds: datagram-dropped */
	send_datagram(&d, 64);
	received(&d);
	close_datagrams(&d);
	return 0;
}
