/* correct_lost: a program that counts on the loss of datagrams, and repeats them */
#include "ud.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad;
	static struct datagrams d;

	open_datagrams(&d);
	for (int count = 0; count == 0;) {
		send_datagram(&d, 64);
		receive = receive_to(part(&d, 1024, 128));
		CHECK(ibv_post_recv(d.qp[1], &receive, &bad) == 0);
		send_datagram(&d, 64);
		count = received(&d);
	}
	close_datagrams(&d);
	return 0;
}
