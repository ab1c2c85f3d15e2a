/* What random loss costs bulk data over UDP sockets, without verbs: selective repeat in its simplest form.
 * The packets are as long as those of a WRITE of 64 KiB and leave in the same bursts. Both ends copy and sum
 * each byte once, as the device does for its ICRC. The receiver answers each batch of packets with what it
 * has, and sends a further packet for each gap, because an ACK or NAK of InfiniBand names only one. Packets
 * that left before one that arrived and are missing are lost, and leave again, in one burst.
 *
 *     resend PORT                           server: receives until it is killed
 *     resend PORT SERVER SECONDS COUNTER [PACKETS]
 *                                           client: counts the acknowledged packets in the file COUNTER;
 *                                           at most so many are in flight (default: 1024)
 */
#define _GNU_SOURCE
#include "datagrams.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAYLOAD = 1024, HEADER = 16, PACKET = PAYLOAD + HEADER, BURST = 62, WINDOW = 1024, BATCH = 64 };
/* After this time without an answer the last packets are lost. */
enum { SILENCE_NS = 1000000 };
/* The length of an ACK, and the most gaps of a batch that are reported. */
enum { REPORT = 20, REPORTS_MAX = 64 };

struct answer {
	/* All packets before this one have arrived. */
	uint64_t first_missing;
	/* A bit for each packet from there on. */
	uint64_t arrived[WINDOW / 64];
};

static uint64_t sum;

static void touch(const char *from, char *to, size_t length)
{
	memcpy(to, from, length);
	for (size_t i = 0; i + 8 <= length; i += 8)
		sum += *(uint64_t *)(to + i);
}

static int bit(const uint64_t *bits, uint64_t number)
{
	return bits[number % WINDOW / 64] >> number % 64 & 1;
}

static void set(uint64_t *bits, uint64_t number, int to)
{
	uint64_t mask = 1ull << number % 64, *word = &bits[number % WINDOW / 64];
	*word = to ? *word | mask : *word & ~mask;
}

static void serve(void)
{
	static char bytes[BATCH][65536], placed[PAYLOAD];
	static struct sockaddr_in names[BATCH];
	static uint64_t arrived[WINDOW / 64];
	struct iovec pieces[BATCH];
	struct mmsghdr headers[BATCH];
	static char reports[REPORTS_MAX * REPORT];
	uint64_t first_missing = 0, first_unseen = 0;
	for (;;) {
		int gaps = 0;
		for (int i = 0; i < BATCH; i++) {
			pieces[i] = (struct iovec){ bytes[i], sizeof bytes[i] };
			headers[i].msg_hdr = (struct msghdr){ .msg_name = &names[i], .msg_namelen = sizeof names[i],
				.msg_iov = &pieces[i], .msg_iovlen = 1 };
		}
		int count = recvmmsg(udp, headers, BATCH, MSG_DONTWAIT, NULL);
		if (count <= 0)
			continue;
		for (int i = 0; i < count; i++) {
			for (unsigned at = 0; at + PACKET <= headers[i].msg_len; at += PACKET) {
				uint64_t number = *(uint64_t *)(bytes[i] + at);
				touch(bytes[i] + at + HEADER, placed, PAYLOAD);
				if (number >= first_missing && number < first_missing + WINDOW)
					set(arrived, number, 1);
				gaps += number > first_unseen;
				if (number >= first_unseen)
					first_unseen = number + 1;
			}
		}
		for (; bit(arrived, first_missing); first_missing++)
			set(arrived, first_missing, 0);
		struct answer answer = { .first_missing = first_missing };
		for (uint64_t i = 0; i < WINDOW; i++)
			set(answer.arrived, i, bit(arrived, first_missing + i));
		sendto(udp, &answer, sizeof answer, MSG_DONTWAIT, (struct sockaddr *)&names[0], sizeof names[0]);
		peer = names[0];
		if (gaps)
			send_burst(reports, (gaps < REPORTS_MAX ? gaps : REPORTS_MAX) * REPORT, REPORT, MSG_DONTWAIT);
	}
}

/* The packets from `first_unanswered` to `next` are on the way or have arrived; each has the number of its
 * last departure, by packet % WINDOW. */
static uint64_t first_unanswered, next, departures, departure[WINDOW], answered[WINDOW / 64];
/* How many of them have arrived. */
static uint64_t arrived_late;
static char message[BURST * PACKET], staged[BURST * PACKET];
static int in_burst;

static void flush(void)
{
	if (in_burst)
		send_burst(staged, in_burst * PACKET, PACKET, 0);
	in_burst = 0;
}

static void add(uint64_t number)
{
	char *to = staged + in_burst * PACKET;
	touch(message + in_burst * PACKET, to + HEADER, PAYLOAD);
	*(uint64_t *)to = number;
	departure[number % WINDOW] = ++departures;
	if (++in_burst == BURST)
		flush();
}

/* Sends those again that left before a packet that has arrived. */
static void resend(uint64_t newest)
{
	for (uint64_t number = first_unanswered; number < next; number++)
		if (!bit(answered, number) && departure[number % WINDOW] < newest)
			add(number);
	flush();
}

/* Sends the last packet again that has no answer: its answer shows what is lost before it. */
static void probe(void)
{
	for (uint64_t number = next; number-- > first_unanswered;)
		if (!bit(answered, number)) {
			add(number);
			break;
		}
	flush();
}

static void take(const struct answer *answer)
{
	static uint64_t newest;
	for (; first_unanswered < answer->first_missing; first_unanswered++) {
		if (departure[first_unanswered % WINDOW] > newest)
			newest = departure[first_unanswered % WINDOW];
		arrived_late -= bit(answered, first_unanswered);
		set(answered, first_unanswered, 0);
	}
	for (uint64_t i = 0; i < WINDOW && first_unanswered + i < next; i++) {
		uint64_t number = answer->first_missing + i;
		if (answer->first_missing == first_unanswered && bit(answer->arrived, i)) {
			arrived_late += !bit(answered, number);
			set(answered, number, 1);
			if (departure[number % WINDOW] > newest)
				newest = departure[number % WINDOW];
		}
	}
	resend(newest);
}

int main(int count, char **words)
{
	check(count != 2 && count != 5 && count != 6, "resend PORT [SERVER SECONDS COUNTER [PACKETS]]");
	int yes = 1, port = atoi(words[1]), room = 16 << 20;
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	/* The client takes its answers one by one. */
	check(udp < 0 || (count == 2 && setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes)), "UDP socket");
	setsockopt(udp, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
	setsockopt(udp, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
	if (count == 2) {
		serve_at(port);
		serve();
	}
	peer = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	check(inet_pton(AF_INET, words[2], &peer.sin_addr) != 1, "SERVER");
	int file = open(words[4], O_RDWR | O_CREAT | O_TRUNC, 0644);
	check(file < 0 || ftruncate(file, sizeof(uint64_t)), words[4]);
	uint64_t in_flight_max = count == 6 ? strtoull(words[5], NULL, 10) : WINDOW;
	volatile uint64_t *acknowledged =
		mmap(NULL, sizeof *acknowledged, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	check(acknowledged == MAP_FAILED, "mmap");
	memset(message, 1, sizeof message);
	double heard = now_ns(), end = heard + atof(words[3]) * 1e9;
	while (now_ns() < end) {
		/* Whole bursts only: a short one costs the same system call. */
		if (next + BURST <= first_unanswered + WINDOW &&
		    next + BURST <= first_unanswered + arrived_late + in_flight_max)
			for (int i = 0; i < BURST; i++)
				add(next++);
		struct answer answer;
		ssize_t length;
		while ((length = recv(udp, &answer, sizeof answer, MSG_DONTWAIT)) > 0) {
			if (length == sizeof answer)
				take(&answer);
			heard = now_ns();
		}
		if (now_ns() - heard > SILENCE_NS) {
			probe();
			heard = now_ns();
		}
		*acknowledged = first_unanswered;
	}
	return sum == 0;
}
