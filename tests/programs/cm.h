/* What programs with identifiers of rdma_cm share. */
#include <arpa/inet.h>
#include <netdb.h>
#include <string.h>

#include <rdma/rdma_cma.h>

#include "must.h"

/* An address and port; valid until the fourth call after this. */
static struct sockaddr *at(const char *text, int port)
{
	static struct sockaddr_storage kept[4];
	static int next;
	struct sockaddr_storage *to = &kept[next++ % 4];
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found;

	MUST(!getaddrinfo(text, NULL, &hints, &found));
	memset(to, 0, sizeof(*to));
	memcpy(to, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	if (to->ss_family == AF_INET)
		((struct sockaddr_in *)to)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)to)->sin6_port = htons(port);
	return (struct sockaddr *)to;
}
