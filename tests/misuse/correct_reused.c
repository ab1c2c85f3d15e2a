/* correct_reused: counts in the first bytes of the buffer of a datagram that it has not looked at */
#include "ud.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad;
	static struct datagrams d;
	volatile int *counter = (int *)(d.memory + 1024);

	open_datagrams(&d);
	receive = receive_to(part(&d, 1024, 128));
	CHECK(ibv_post_recv(d.qp[1], &receive, &bad) == 0);
	send_datagram(&d, 64);
	CHECK(received(&d) == 1);
	*counter = 0;
	while (*counter < 3)
		*counter += 1;
	close_datagrams(&d);
	return 0;
}
