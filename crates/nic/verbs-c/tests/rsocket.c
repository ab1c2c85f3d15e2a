/*
 * Calls rsockets as a program does: how functions report errors, transfers of every kind between two threads,
 * how connections end, waiting for several sockets, memory that the peer writes to, datagrams. Prints the
 * first false condition and exits 1; exits 77 without a device.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* The call returns -1 and sets errno. */
#define MINUS(e, call) CHECK((errno = 0, (call) == -1) && errno == (e))
#define LEN(array) (sizeof(array) / sizeof((array)[0]))

static struct sockaddr_in loopback(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr =
		htonl(INADDR_LOOPBACK) };
}

static int set(int s, int level, int name, int value)
{
	return rsetsockopt(s, level, name, &value, sizeof(value));
}

static int get(int s, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);
	CHECK(!rgetsockopt(s, level, name, &value, &len) && len == sizeof(value));
	return value;
}

static struct sockaddr_in listening(int *s)
{
	struct sockaddr_in at = loopback(0);
	socklen_t len = sizeof(at);
	*s = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(*s >= 0);
	CHECK(!rbind(*s, (struct sockaddr *)&at, sizeof(at)) && !rlisten(*s, 8));
	CHECK(!rgetsockname(*s, (struct sockaddr *)&at, &len) && len == sizeof(at) && at.sin_port);
	return at;
}

/* Connects two sockets of this process. The client's end is nonblocking, because no thread accepts yet. */
static void connected(int *client, int *server, void (*options)(int))
{
	int listener;
	struct sockaddr_in at, peer;
	socklen_t len = sizeof(peer);
	struct pollfd wait;

	at = listening(&listener);
	*client = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	CHECK(*client >= 0);
	if (options) {
		options(listener);
		options(*client);
	}
	CHECK(!rfcntl(*client, F_SETFL, O_NONBLOCK) && rfcntl(*client, F_GETFL) & O_NONBLOCK);
	MINUS(EINPROGRESS, rconnect(*client, (struct sockaddr *)&at, sizeof(at)));
	MINUS(EALREADY, rconnect(*client, (struct sockaddr *)&at, sizeof(at)));
	/* The accepted socket is blocking, whatever its listener is. */
	wait = (struct pollfd){ .fd = listener, .events = POLLIN };
	CHECK(!rfcntl(listener, F_SETFL, O_NONBLOCK) && rpoll(&wait, 1, 5000) == 1);
	*server = raccept(listener, (struct sockaddr *)&peer, &len);
	CHECK(*server >= 0 && len == sizeof(peer) && peer.sin_port);
	CHECK(!(rfcntl(*server, F_GETFL) & O_NONBLOCK));
	wait = (struct pollfd){ .fd = *client, .events = POLLOUT };
	CHECK(rpoll(&wait, 1, 5000) == 1 && wait.revents == POLLOUT);
	CHECK(get(*client, SOL_SOCKET, SO_ERROR) == 0);
	MINUS(EISCONN, rconnect(*client, (struct sockaddr *)&at, sizeof(at)));
	CHECK(!rfcntl(*client, F_SETFL, 0));
	len = sizeof(at);
	CHECK(!rgetpeername(*server, (struct sockaddr *)&at, &len) && at.sin_port == peer.sin_port);
	CHECK(!rclose(listener));
}

static void conventions(void)
{
	struct sockaddr_in at = loopback(0), closed;
	struct linger linger;
	struct tcp_info info;
	socklen_t len;
	int s, listener;
	char byte;

	MINUS(ENOTSUP, rsocket(AF_UNIX, SOCK_STREAM, 0));
	MINUS(ENOTSUP, rsocket(AF_INET, SOCK_SEQPACKET, 0));
	MINUS(ENOTSUP, rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
	MINUS(EBADF, rclose(12345));
	MINUS(EBADF, rsend(12345, "", 1, 0));
	s = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s < 0 && errno == ENODEV)
		exit(77);
	CHECK(s >= 0 && rfcntl(s, F_GETFL) & O_NONBLOCK && rfcntl(s, F_GETFD) == FD_CLOEXEC);
	MINUS(ENOTSUP, rfcntl(s, F_DUPFD, 0));
	MINUS(ENOTCONN, rsend(s, "", 1, 0));
	MINUS(ENOTCONN, rrecv(s, &byte, 1, 0));
	MINUS(ENOTCONN, rshutdown(s, SHUT_RDWR));
	len = sizeof(at);
	MINUS(ENOTCONN, rgetpeername(s, (struct sockaddr *)&at, &len));
	MINUS(EINVAL, raccept(s, NULL, NULL));
	MINUS(EINVAL, rbind(s, (struct sockaddr *)&at, 3));
	len = sizeof(at);
	CHECK(!rgetsockname(s, (struct sockaddr *)&at, &len) && at.sin_family == AF_INET && !at.sin_port);
	/* librspreload asks so how long the address is. */
	len = 0;
	CHECK(!rgetsockname(s, NULL, &len) && len == sizeof(at));
	MINUS(EFAULT, rgetsockname(s, NULL, &len));
	MINUS(EFAULT, rgetsockname(s, (struct sockaddr *)&at, NULL));
	MINUS(EINVAL, rbind(s, NULL, 0));
	MINUS(EINVAL, riomap(s, &byte, 1, PROT_WRITE, 0, 0));

	MINUS(ENOTSUP, set(s, SOL_SOCKET, SO_MARK, 1));
	MINUS(EINVAL, rsetsockopt(s, SOL_SOCKET, SO_RCVBUF, &byte, 1));
	CHECK(!set(s, SOL_SOCKET, SO_RCVBUF, 30000) && get(s, SOL_SOCKET, SO_RCVBUF) == 60000);
	CHECK(!set(s, SOL_SOCKET, SO_SNDBUF, 10) && get(s, SOL_SOCKET, SO_SNDBUF) == 4096);
	CHECK(!set(s, SOL_SOCKET, SO_REUSEADDR, 1) && get(s, SOL_SOCKET, SO_REUSEADDR) == 1);
	CHECK(!set(s, SOL_SOCKET, SO_KEEPALIVE, 1) && get(s, SOL_SOCKET, SO_KEEPALIVE) == 1);
	CHECK(!set(s, IPPROTO_TCP, TCP_NODELAY, 1) && get(s, IPPROTO_TCP, TCP_NODELAY) == 1);
	CHECK(!set(s, IPPROTO_TCP, TCP_KEEPIDLE, 5) && get(s, IPPROTO_TCP, TCP_KEEPIDLE) == 5);
	MINUS(EINVAL, set(s, IPPROTO_TCP, TCP_KEEPIDLE, 0));
	CHECK(!set(s, IPPROTO_IP, IP_TOS, 8) && get(s, IPPROTO_IP, IP_TOS) == 8);
	CHECK(!set(s, SOL_RDMA, RDMA_SQSIZE, 1) && get(s, SOL_RDMA, RDMA_SQSIZE) == 16);
	CHECK(!set(s, SOL_RDMA, RDMA_RQSIZE, 100) && get(s, SOL_RDMA, RDMA_RQSIZE) == 100);
	CHECK(!set(s, SOL_RDMA, RDMA_INLINE, 32) && get(s, SOL_RDMA, RDMA_INLINE) == 32);
	CHECK(!set(s, SOL_RDMA, RDMA_IOMAPSIZE, 129) && get(s, SOL_RDMA, RDMA_IOMAPSIZE) == 128);
	CHECK(get(s, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
	len = sizeof(linger);
	CHECK(!rgetsockopt(s, SOL_SOCKET, SO_LINGER, &linger, &len) && len == sizeof(linger) &&
		linger.l_onoff == 1);
	len = sizeof(info);
	CHECK(!rgetsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len) && info.tcpi_state == TCP_CLOSE);

	/* The listener of this address is closed. */
	closed = listening(&listener);
	MINUS(EAGAIN, (rfcntl(listener, F_SETFL, O_NONBLOCK), raccept(listener, NULL, NULL)));
	CHECK(!rclose(listener));
	CHECK(!rfcntl(s, F_SETFL, 0));
	MINUS(ECONNREFUSED, rconnect(s, (struct sockaddr *)&closed, sizeof(closed)));
	MINUS(EINVAL, rconnect(s, (struct sockaddr *)&closed, sizeof(closed)));
	CHECK(!rclose(s));
	MINUS(EBADF, rclose(s));
}

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 7 + (at >> 8) * 13 + (at >> 16));
}

struct stream {
	int s;
	size_t bytes;
	int flags;
};

/* Sends `bytes` bytes in pieces of all sizes. */
static void *send_all(void *argument)
{
	struct stream *to = argument;
	uint8_t *data = malloc(to->bytes);
	size_t done = 0, piece = 1;

	for (size_t i = 0; i < to->bytes; i++)
		data[i] = pattern(i);
	while (done < to->bytes) {
		size_t len = piece < to->bytes - done ? piece : to->bytes - done, half = len / 2;
		struct iovec parts[] = { { data + done, half }, { NULL, 0 },
			{ data + done + half, len - half } };
		struct msghdr msg = { .msg_iov = parts, .msg_iovlen = LEN(parts) };
		ssize_t sent = piece & 1 ? rsend(to->s, data + done, len, to->flags) : rsendmsg(to->s, &msg,
			to->flags);
		if (sent < 0) {
			CHECK(errno == EAGAIN && to->flags & MSG_DONTWAIT);
			struct pollfd wait = { .fd = to->s, .events = POLLOUT };
			CHECK(rpoll(&wait, 1, 10000) == 1 && wait.revents & POLLOUT);
			continue;
		}
		CHECK(sent > 0 && (size_t)sent <= len && (to->flags || (size_t)sent == len));
		done += sent;
		piece = piece * 3 % 300007 + 1;
	}
	free(data);
	return NULL;
}

/* Receives `bytes` bytes in pieces of all sizes. */
static void *receive_all(void *argument)
{
	struct stream *from = argument;
	uint8_t *data = malloc(300007);
	size_t done = 0, piece = 2;

	while (done < from->bytes) {
		size_t half = piece / 2;
		struct iovec parts[] = { { data, half }, { data + half, piece - half } };
		struct msghdr msg = { .msg_iov = parts, .msg_iovlen = LEN(parts), .msg_flags = 0x55 };
		ssize_t got = piece & 1 ? rrecv(from->s, data, piece, from->flags) : rrecvmsg(from->s, &msg,
			from->flags);
		if (got < 0) {
			CHECK(errno == EAGAIN && from->flags & MSG_DONTWAIT);
			struct pollfd wait = { .fd = from->s, .events = POLLIN };
			CHECK(rpoll(&wait, 1, 10000) == 1 && wait.revents & POLLIN);
			continue;
		}
		CHECK(got > 0 && (size_t)got <= piece);
		for (ssize_t i = 0; i < got; i++)
			CHECK(data[i] == pattern(done + i));
		done += got;
		piece = piece * 5 % 300007 + 1;
	}
	free(data);
	return NULL;
}

/* Transfers in both directions at once; each end has a sending and a receiving thread. */
static void exchange(int a, int b, size_t bytes, int flags)
{
	struct stream ends[] = { { a, bytes, flags }, { b, bytes, flags } };
	pthread_t threads[4];

	for (int i = 0; i < 2; i++) {
		CHECK(!pthread_create(&threads[2 * i], NULL, send_all, &ends[i]));
		CHECK(!pthread_create(&threads[2 * i + 1], NULL, receive_all, &ends[i]));
	}
	for (size_t i = 0; i < LEN(threads); i++)
		CHECK(!pthread_join(threads[i], NULL));
}

static void narrow(int s)
{
	CHECK(!set(s, SOL_SOCKET, SO_RCVBUF, 3000) && !set(s, SOL_SOCKET, SO_SNDBUF, 2048));
	CHECK(!set(s, SOL_RDMA, RDMA_SQSIZE, 16) && !set(s, SOL_RDMA, RDMA_RQSIZE, 16));
}

static void transfers(void)
{
	int client, server;
	char data[8] = "", *text = "abcdefgh";
	struct sockaddr_in from;
	socklen_t len = sizeof(from);

	connected(&client, &server, NULL);
	CHECK(rsend(client, text, 0, 0) == 0 && rrecv(server, data, 0, 0) == 0);
	MINUS(EAGAIN, rrecv(server, data, 1, MSG_DONTWAIT));
	CHECK(rwrite(client, text, 8) == 8);
	CHECK(rrecv(server, data, 3, MSG_PEEK | MSG_WAITALL) > 0 && data[0] == 'a');
	CHECK(rrecvfrom(server, data, 3, MSG_WAITALL, (struct sockaddr *)&from, &len) == 3 && !memcmp(data,
		"abc", 3));
	CHECK(len == sizeof(from) && from.sin_family == AF_INET);
	CHECK(rread(server, data, 8) == 5 && !memcmp(data, "defgh", 5));
	MINUS(EISCONN, rsendto(client, text, 1, 0, (struct sockaddr *)&from, len));
	CHECK(rsendto(server, text, 2, 0, NULL, 0) == 2 && rrecv(client, data, 2, MSG_WAITALL) == 2);
	exchange(client, server, 20 << 20, 0);
	exchange(client, server, 5 << 20, MSG_DONTWAIT);
	CHECK(!rclose(client) && !rclose(server));

	connected(&client, &server, narrow);
	exchange(client, server, 1 << 20, 0);
	/* Sending stops while the peer does not read, and continues when it does. */
	size_t sent = 0;
	ssize_t now;
	while ((now = rsend(client, text, 8, MSG_DONTWAIT)) > 0)
		sent += now;
	CHECK(errno == EAGAIN && sent > 0 && sent <= 16 * 8);
	CHECK(rrecv(server, data, 8, MSG_WAITALL) == 8 && !memcmp(data, text, 8));
	for (size_t got = 8; got < sent; got += 8)
		CHECK(rrecv(server, data, 8, MSG_WAITALL) == 8);
	CHECK(rsend(client, text, 8, 0) == 8);
	CHECK(!rclose(client) && !rclose(server));
}

static void ends(void)
{
	int client, server;
	char data[8];
	struct pollfd wait;

	/* Shuts one direction down, then the other. */
	connected(&client, &server, NULL);
	CHECK(rsend(client, "last", 4, 0) == 4 && !rshutdown(client, SHUT_WR));
	MINUS(EPIPE, rsend(client, "more", 4, 0));
	CHECK(rrecv(server, data, 8, MSG_WAITALL) == 4 && !memcmp(data, "last", 4));
	CHECK(rrecv(server, data, 8, 0) == 0);
	wait = (struct pollfd){ .fd = server, .events = POLLIN | POLLOUT | POLLRDHUP };
	CHECK(rpoll(&wait, 1, 0) == 1 && wait.revents == (POLLIN | POLLOUT | POLLRDHUP));
	CHECK(rsend(server, "answer", 6, 0) == 6 && rrecv(client, data, 8, 0) == 6);
	CHECK(!rshutdown(server, SHUT_WR) && rrecv(client, data, 8, 0) == 0);
	CHECK(!rclose(client) && !rclose(server));

	/* Data that were sent before the close can be received after it. */
	connected(&client, &server, NULL);
	CHECK(rsend(client, "last", 4, 0) == 4 && !rclose(client));
	wait = (struct pollfd){ .fd = server, .events = POLLIN };
	CHECK(rpoll(&wait, 1, 5000) == 1 && wait.revents & POLLIN);
	CHECK(rrecv(server, data, 8, 0) == 4);
	errno = EAGAIN;
	CHECK(rrecv(server, data, 8, 0) == 0 && errno != EAGAIN);
	CHECK(rpoll(&wait, 1, 5000) == 1 && wait.revents == (POLLIN | POLLHUP));
	MINUS(ECONNRESET, rsend(server, "x", 1, 0));
	CHECK(!rshutdown(server, SHUT_RDWR) && !rclose(server));

	/* A connection ends when the peer process is killed. */
	struct sockaddr_in at = listening(&server);
	pid_t child = fork();
	if (!child) {
		int s = rsocket(AF_INET, SOCK_STREAM, 0);
		/* A forked child cannot use the parent's socket. */
		if (s < 0 || rsend(server, "x", 1, 0) != -1 || errno != EBADF)
			_exit(1);
		if (rconnect(s, (struct sockaddr *)&at, sizeof(at)) || rsend(s, "hello", 5, 0) != 5)
			_exit(2);
		pause();
	}
	client = raccept(server, NULL, NULL);
	CHECK(client >= 0 && rrecv(client, data, 5, MSG_WAITALL) == 5);
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	CHECK(rrecv(client, data, 8, 0) == 0);
	CHECK(!rclose(client) && !rclose(server));
}

static void *close_later(void *s)
{
	nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
	CHECK(!rclose((int)(intptr_t)s));
	return NULL;
}

static void *write_later(void *fd)
{
	nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
	CHECK(write((int)(intptr_t)fd, "x", 1) == 1);
	return NULL;
}

static void waiting(void)
{
	int client, server, ends[2];
	char byte;
	pthread_t thread;
	struct timeval soon = { .tv_usec = 10000 };
	fd_set readable, writable;

	connected(&client, &server, NULL);
	CHECK(!pipe(ends));
	struct pollfd both[] = { { .fd = ends[0], .events = POLLIN }, { .fd = server, .events = POLLIN },
		{ .fd = -1 } };
	CHECK(rpoll(both, LEN(both), 0) == 0 && rpoll(both, LEN(both), 20) == 0);
	CHECK(!pthread_create(&thread, NULL, write_later, (void *)(intptr_t)ends[1]));
	CHECK(rpoll(both, LEN(both), 5000) == 1 && both[0].revents == POLLIN && !both[1].revents);
	CHECK(!pthread_join(thread, NULL) && read(ends[0], &byte, 1) == 1);
	CHECK(rsend(client, "x", 1, 0) == 1);
	CHECK(rpoll(both, LEN(both), 5000) == 1 && !both[0].revents && both[1].revents == POLLIN);

	FD_ZERO(&readable);
	FD_ZERO(&writable);
	FD_SET(server, &readable);
	FD_SET(client, &readable);
	FD_SET(ends[0], &readable);
	FD_SET(client, &writable);
	int most = (server > client ? server : client) + 1;
	CHECK(rselect(most > ends[0] ? most : ends[0] + 1, &readable, &writable, NULL, NULL) == 2);
	CHECK(FD_ISSET(server, &readable) && !FD_ISSET(client, &readable) && FD_ISSET(client, &writable));
	CHECK(rrecv(server, &byte, 1, 0) == 1);
	FD_ZERO(&readable);
	FD_SET(server, &readable);
	CHECK(rselect(server + 1, &readable, NULL, NULL, &soon) == 0 && !FD_ISSET(server, &readable));

	/* Closing a socket wakes a thread that waits on it. */
	CHECK(!pthread_create(&thread, NULL, close_later, (void *)(intptr_t)server));
	CHECK(rrecv(server, &byte, 1, 0) <= 0);
	CHECK(!pthread_join(thread, NULL));
	CHECK(rrecv(client, &byte, 1, 0) == 0 && !rclose(client));
	close(ends[0]);
	close(ends[1]);
}

/* Older headers lack repoll_*. */
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);
#pragma weak repoll_create
#pragma weak repoll_ctl
#pragma weak repoll_wait

static void epolls(void)
{
	int client, server, ends[2], ep;
	char byte;
	pthread_t thread;
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 1 }, found[4];

	CHECK(repoll_create && (ep = repoll_create(O_CLOEXEC)) >= 0);
	connected(&client, &server, NULL);
	CHECK(!pipe(ends));
	MINUS(EBADF, repoll_ctl(12345, EPOLL_CTL_ADD, server, &event));
	MINUS(EINVAL, repoll_ctl(ep, EPOLL_CTL_ADD, ep, &event));
	MINUS(ENOENT, repoll_ctl(ep, EPOLL_CTL_MOD, server, &event));
	CHECK(!repoll_ctl(ep, EPOLL_CTL_ADD, server, &event));
	MINUS(EEXIST, repoll_ctl(ep, EPOLL_CTL_ADD, server, &event));
	event.data.u64 = 2;
	CHECK(!repoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
	MINUS(EINVAL, repoll_wait(ep, found, 0, 0));
	CHECK(repoll_wait(ep, found, 4, 0) == 0 && repoll_wait(ep, found, 4, 20) == 0);
	CHECK(rsend(client, "x", 1, 0) == 1);
	CHECK(repoll_wait(ep, found, 4, 5000) == 1 && found[0].data.u64 == 1 && found[0].events == EPOLLIN);
	CHECK(write(ends[1], "x", 1) == 1 && repoll_wait(ep, found, 1, 5000) == 1);
	CHECK(repoll_wait(ep, found, 4, 5000) == 2);
	CHECK(rrecv(server, &byte, 1, 0) == 1 && repoll_wait(ep, found, 4, -1) == 1 &&
		found[0].data.u64 == 2);
	CHECK(read(ends[0], &byte, 1) == 1 && repoll_wait(ep, found, 4, 0) == 0);
	CHECK(!pthread_create(&thread, NULL, write_later, (void *)(intptr_t)ends[1]));
	CHECK(repoll_wait(ep, found, 4, 5000) == 1 && found[0].data.u64 == 2 && !pthread_join(thread, NULL));
	CHECK(!repoll_ctl(ep, EPOLL_CTL_DEL, ends[0], NULL) && repoll_wait(ep, found, 4, 0) == 0);
	event = (struct epoll_event){ .events = EPOLLOUT | EPOLLONESHOT, .data.u64 = 3 };
	CHECK(!repoll_ctl(ep, EPOLL_CTL_MOD, server, &event));
	CHECK(repoll_wait(ep, found, 4, 5000) == 1 && found[0].data.u64 == 3 && found[0].events == EPOLLOUT);
	CHECK(repoll_wait(ep, found, 4, 0) == 0);
	CHECK(!rclose(ep) && !rclose(client) && !rclose(server));
	MINUS(EBADF, repoll_wait(ep, found, 4, 0));
	close(ends[0]);
	close(ends[1]);
}

static void two_maps(int s)
{
	CHECK(!set(s, SOL_RDMA, RDMA_IOMAPSIZE, 2));
}

static void maps(void)
{
	static uint8_t window[100000], other[64], data[100000];
	int client, server;
	char byte;

	connected(&client, &server, two_maps);
	MINUS(EINVAL, riomap(server, window, sizeof(window), PROT_EXEC, 0, 0));
	CHECK(riomap(server, window, sizeof(window), PROT_WRITE, 0, 4096) == 4096);
	CHECK(riomap(server, other, sizeof(other), PROT_WRITE, 0, -1) == (off_t)(intptr_t)other);
	MINUS(ENOMEM, riomap(server, other, 1, PROT_WRITE, 0, 0));
	CHECK(riomap(server, other, 1, PROT_NONE, 0, 0) == 0);
	/* The peer learns of the mapping with the next transfer. */
	CHECK(rsend(server, "m", 1, 0) == 1 && rrecv(client, &byte, 1, 0) == 1);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = pattern(i);
	CHECK(riowrite(client, data, sizeof(data) - 1, 4097, 0) == sizeof(data) - 1);
	CHECK(riowrite(client, "there", 5, (off_t)(intptr_t)other + 59, 0) == 5);
	CHECK(riowrite(client, data, 100, 4096 + sizeof(data) - 10, 0) == 10);
	CHECK(riowrite(client, data, 1, 1, 0) == 0);
	CHECK(rsend(client, "w", 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1);
	CHECK(!window[0] && !memcmp(window + 1, data, sizeof(window) - 11) && !memcmp(other + 59, "there",
		5));
	CHECK(!memcmp(window + sizeof(window) - 10, data, 10));
	MINUS(EINVAL, riounmap(server, window, 5));
	CHECK(!riounmap(server, window, sizeof(window)));
	/* A write to memory that is no longer mapped ends the connection. */
	CHECK(riowrite(client, data, 10, 4096, 0) == 10);
	CHECK(rrecv(client, &byte, 1, 0) == -1 && errno == ECONNRESET);
	CHECK(!rclose(client) && !rclose(server));
}

/*
 * Sends a message to the address of another socket and receives it there; returns the address of the sender.
 */
static struct sockaddr_in taken(int from, int to, const struct sockaddr_in *at, const char *text)
{
	struct sockaddr_in sender = { 0 };
	socklen_t len = sizeof(sender);
	char got[16];

	CHECK(rsendto(from, text, strlen(text), 0, (const struct sockaddr *)at,
		sizeof(*at)) == (ssize_t)strlen(text));
	CHECK(rrecvfrom(to, got, sizeof(got), 0, (struct sockaddr *)&sender, &len) == (ssize_t)strlen(text));
	CHECK(!memcmp(got, text, strlen(text)) && len == sizeof(sender) && sender.sin_family == AF_INET);
	return sender;
}

static void datagrams(void)
{
	struct sockaddr_in at = loopback(0), own, sender;
	struct sockaddr_in6 at6 = { .sin6_family = AF_INET6 };
	socklen_t len = sizeof(at);
	static char big[5000];
	char got[16];
	struct iovec parts[2] = { { got, 1 }, { got + 1, 15 } };
	struct msghdr message = { .msg_name = &sender, .msg_namelen = sizeof(sender), .msg_iov = parts,
		.msg_iovlen = 2 };
	struct pollfd wait;
	int a, b, c;

	a = rsocket(AF_INET, SOCK_DGRAM, 0);
	b = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
	c = rsocket(AF_INET6, SOCK_DGRAM, 0);
	CHECK(a >= 0 && b >= 0 && c >= 0 && get(a, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
	CHECK(get(b, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDP);
	MINUS(EOPNOTSUPP, rlisten(a, 1));
	MINUS(EOPNOTSUPP, rshutdown(a, SHUT_WR));
	MINUS(EDESTADDRREQ, rsend(b, "x", 1, 0));
	MINUS(ENOTCONN, rgetpeername(b, (struct sockaddr *)&own, &len));
	CHECK(!set(a, SOL_SOCKET, SO_RCVBUF, 65536));
	CHECK(!rbind(a, (struct sockaddr *)&at, sizeof(at)) && !rgetsockname(a, (struct sockaddr *)&at,
		&len) && at.sin_port);
	MINUS(EINVAL, set(a, SOL_RDMA, RDMA_RQSIZE, 5));
	MINUS(EAGAIN, rrecv(a, got, sizeof(got), MSG_DONTWAIT));
	wait = (struct pollfd){ .fd = a, .events = POLLIN | POLLOUT };
	CHECK(rpoll(&wait, 1, 0) == 1 && wait.revents == POLLOUT);

	/* At first neither socket knows the other's queue pair, then one does, then both do. */
	own = taken(b, a, &at, "first");
	CHECK(own.sin_port && own.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	sender = taken(a, b, &own, "second");
	CHECK(sender.sin_port == at.sin_port);
	sender = taken(b, a, &at, "third");
	CHECK(sender.sin_port == own.sin_port);

	CHECK(!rconnect(b, (struct sockaddr *)&at, sizeof(at)));
	len = sizeof(sender);
	CHECK(!rgetpeername(b, (struct sockaddr *)&sender, &len) && sender.sin_port == at.sin_port);
	CHECK(!rgetsockname(b, (struct sockaddr *)&sender, &len) &&
		sender.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	MINUS(EMSGSIZE, rsend(b, big, sizeof(big), 0));
	/* Each call receives one message and discards the rest of it. */
	CHECK(rsend(b, "abcdef", 6, 0) == 6 && rsend(b, "", 0, 0) == 0 && rsend(b, "gh", 2, 0) == 2);
	wait.events = POLLIN;
	CHECK(rpoll(&wait, 1, 5000) == 1 && wait.revents == POLLIN);
	CHECK(rrecv(a, got, 3, MSG_PEEK) == 3 && rrecv(a, got, 4, 0) == 4 && !memcmp(got, "abcd", 4));
	CHECK(rrecv(a, got, sizeof(got), 0) == 0);
	CHECK(rrecvmsg(a, &message, 0) == 2 && !memcmp(got, "gh", 2) && sender.sin_port == own.sin_port);
	MINUS(EAGAIN, rrecv(a, got, sizeof(got), MSG_DONTWAIT));

	/* More messages than the queue has entries, with addresses in the message headers. */
	message.msg_name = &own;
	for (int i = 0; i < 500; i++) {
		parts[0] = (struct iovec){ &i, sizeof(i) };
		message.msg_iovlen = 1;
		CHECK(rsendmsg(a, &message, 0) == sizeof(i));
		CHECK(rrecv(b, got, sizeof(got), 0) == sizeof(i) && !memcmp(got, &i, sizeof(i)));
	}

	/* A connected socket receives from its peer only. */
	at6.sin6_addr = (struct in6_addr){ .s6_addr = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1 } };
	at6.sin6_port = at.sin_port;
	CHECK(rsendto(c, "six", 3, 0, (struct sockaddr *)&at6, sizeof(at6)) == 3);
	CHECK(rrecv(a, got, sizeof(got), 0) == 3 && !memcmp(got, "six", 3));
	len = sizeof(sender);
	CHECK(!rgetsockname(b, (struct sockaddr *)&sender, &len));
	at6.sin6_port = sender.sin_port;
	CHECK(rsendto(c, "stranger", 8, 0, (struct sockaddr *)&at6, sizeof(at6)) == 8);
	taken(a, b, &sender, "friend");
	CHECK(!rclose(b) && !rclose(c) && !rclose(a));
	MINUS(EBADF, rrecv(a, got, sizeof(got), 0));
}

int main(void)
{
	alarm(120);
	conventions();
	transfers();
	ends();
	waiting();
	epolls();
	maps();
	datagrams();
	return 0;
}
