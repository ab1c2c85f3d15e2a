/* Round trips of small UDP datagrams between two programs that sleep until one arrives: what the kernel takes
 * for the messages of an I/O, with no device. A datagram wakes up the thread that sleeps in poll(2). With two
 * wake-ups that is a thread of the device, which wakes up the thread of the application by an eventfd, as
 * behind a completion channel; the application replies.
 *
 *     wakes PORT WAKES                   server: replies until it is killed
 *     wakes PORT WAKES SERVER SECONDS    client: prints the median round trip in us
 * WAKES: wake-ups by a datagram at this end, 1 or 2
 */
#define _GNU_SOURCE
#include "datagrams.h"
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BYTES = 100, SAMPLES_MAX = 1 << 20 };

static char message[BYTES];
static int completions;

/* Sleeps until a datagram is here, and takes it. */
static void sleep_and_receive(void)
{
	struct pollfd socket = { udp, POLLIN, 0 };
	do
		check(poll(&socket, 1, -1) < 0, "poll");
	while (receive_burst() < 0);
}

static void *serve_socket(void *unused)
{
	for (uint64_t one = 1;;) {
		sleep_and_receive();
		check(write(completions, &one, sizeof one) < 0, "write");
	}
	return unused;
}

/* Sleeps until the thread of the device has received a datagram. */
static void sleep_until_completion(void)
{
	struct pollfd channel = { completions, POLLIN, 0 };
	uint64_t count;
	check(poll(&channel, 1, -1) < 0 || read(completions, &count, sizeof count) < 0, "poll");
}

static void (*hear)(void) = sleep_and_receive;

static void say(void)
{
	send_burst(message, BYTES, BYTES, 0);
}

static void round_trip(void)
{
	say();
	hear();
}

int main(int count, char **words)
{
	check(count != 3 && count != 5, "wakes PORT WAKES [SERVER SECONDS]");
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	completions = eventfd(0, 0);
	check(udp < 0 || completions < 0, "UDP socket, eventfd");
	peer = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
	if (count == 3)
		serve_at(atoi(words[1]));
	else
		check(inet_aton(words[3], &peer.sin_addr) == 0, words[3]);
	pthread_t thread;
	if (atoi(words[2]) == 2) {
		/* Its port is chosen by the first datagram: the thread may sleep before that. */
		check(pthread_create(&thread, NULL, serve_socket, NULL), "pthread_create");
		hear = sleep_until_completion;
	}
	if (count == 5) {
		printf("%.1f\n", percentiles_ns(round_trip, atof(words[4]), SAMPLES_MAX).median / 1e3);
		return 0;
	}
	for (;;) {
		hear();
		say();
	}
}
