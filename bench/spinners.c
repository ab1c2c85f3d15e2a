/* Threads that pass a token round; each spins until it has the token. Prints the mean time of a round. With
 * more threads than CPUs the token waits until the kernel takes a CPU from a thread that spins, however short
 * the work is. An application that spins in several threads for one request has this bound over any device.
 *
 *     spinners THREADS SECONDS     prints the mean time of a round in us
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS_MAX = 64 };

static unsigned long threads;
static atomic_ulong passes;
static atomic_int is_over;

static void *pass_on(void *argument)
{
	unsigned long own = (unsigned long)argument;
	while (!atomic_load_explicit(&is_over, memory_order_relaxed)) {
		if (atomic_load_explicit(&passes, memory_order_acquire) % threads == own)
			atomic_fetch_add_explicit(&passes, 1, memory_order_release);
	}
	return NULL;
}

int main(int count, char **words)
{
	pthread_t ids[THREADS_MAX];
	threads = count == 3 ? strtoul(words[1], NULL, 10) : 0;
	unsigned seconds = count == 3 ? (unsigned)strtoul(words[2], NULL, 10) : 0;
	if (threads == 0 || threads > THREADS_MAX || seconds == 0) {
		fprintf(stderr, "usage: spinners THREADS SECONDS, 1 to %d threads\n", THREADS_MAX);
		return 2;
	}
	for (unsigned long i = 0; i < threads; i++) {
		if (pthread_create(&ids[i], NULL, pass_on, (void *)i) != 0) {
			fprintf(stderr, "spinners: pthread_create failed\n");
			return 1;
		}
	}
	sleep(seconds);
	double rounds = (double)atomic_load(&passes) / (double)threads;
	atomic_store(&is_over, 1);
	for (unsigned long i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("%lu threads: %.4g us a round\n", threads, seconds * 1e6 / rounds);
	return 0;
}
